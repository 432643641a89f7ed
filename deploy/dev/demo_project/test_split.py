"""What a split has to keep, and how a receipt looks."""

import unittest

from receipt import receipt
from split import split


class SplitTest(unittest.TestCase):
    """Splitting never makes money appear or vanish."""

    def test_an_even_bill_is_split_evenly(self) -> None:
        assert split(900, 3) == [300, 300, 300], split(900, 3)

    def test_no_cent_is_lost(self) -> None:
        assert sum(split(1000, 3)) == 1000, f"1000 cents became {sum(split(1000, 3))}"

    def test_shares_differ_by_one_cent_at_most(self) -> None:
        assert split(1000, 3) == [334, 333, 333], split(1000, 3)

    def test_the_receipt_names_everybody(self) -> None:
        assert receipt(1000, ["Ada", "Bo", "Cy"]) == "Ada: 3.34\nBo: 3.33\nCy: 3.33"


if __name__ == "__main__":
    unittest.main()
