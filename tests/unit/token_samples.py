"""Texts whose tokens were counted with three public vocabularies, for the test of the estimate.

Invariant: the same texts on every machine; what is random is seeded.
"""

import base64
import json
import random
import uuid


def _texts() -> dict[str, str]:
    chance = random.Random(7)
    numbers = [{"id": f"run_{i}", "usage": {"input_tokens": i * 37, "cost": i / 7}} for i in range(60)]
    return {
        "prose": (
            "Perdure runs agents that outlive a process, a machine and a context window. A task goes in; the model "
            "reasons and calls tools; the runtime validates and executes them in an isolated workspace, verifies the "
            "result against reality, records every step in a durable log, and streams it all.\n"
        )
        * 8,
        "code": (
            "    async def _catch_up(self) -> bool:\n"
            '        """Fold in what is behind the folded state, however long the bus stays away."""\n'
            "        key = LogKey(self.tenant, self.run_id)\n"
            "        while True:\n"
            "            try:\n"
            "                behind = await self._parts.bus.log.read(key, self._folded.last)\n"
            "                break\n"
            "            except Unavailable as error:\n"
            '                self._log.warning("session.bus_away", reason=error.message)\n'
            "        return bool(behind) and behind[0].header.boot == self._parts.boot\n"
        )
        * 6,
        "JSON": json.dumps(numbers),
        "HTML": '<div class="row"><span id="a1">Hello</span><a href="https://x.y/z?q=1&amp;b=2">link</a></div>\n'
        * 40,
        "log": "\n".join(
            f"2026-11-30T08:{i:02d}:{i * 7 % 60:02d}.{i * 37 % 1000:03d}Z INFO worker[{1000 + i}] "
            f"request id={chance.randbytes(8).hex()} took {chance.random() * 100:.3f} ms status=200"
            for i in range(60)
        ),
        "numbers": "\n".join("\t".join(f"{chance.random():.4f}" for _ in range(8)) for _ in range(60)),
        "base64": base64.b64encode(chance.randbytes(3_000)).decode(),
        "base64 in lines": base64.encodebytes(chance.randbytes(3_000)).decode(),
        "hashes": "\n".join(f"{chance.randbytes(32).hex()}  src/file_{i}.py" for i in range(60)),
        "UUIDs": "\n".join(str(uuid.UUID(int=chance.getrandbits(128))) for _ in range(60)),
        "Chinese": "任务进入后，模型进行推理并调用工具；运行时在隔离的工作区中验证并执行它们，根据现实核对结果。"  # noqa: RUF001 Chinese commas
        * 20,
        "Japanese": "タスクが入ると、モデルは推論し、ツールを呼び出します。実行環境はプロセスより長く生き残ります。"
        * 20,
        "Korean": "작업이 들어오면 모델이 추론하고 도구를 호출합니다. 런타임은 프로세스보다 오래 지속됩니다."
        * 20,
        "Russian": "Задача поступает, модель рассуждает и вызывает инструменты, а среда переживает процесс. "  # noqa: RUF001 Russian letters
        * 20,
        "Arabic": "تدخل المهمة فيفكر النموذج ويستدعي الأدوات، وتدوم البيئة أطول من العملية. " * 20,
        "Hindi": "कार्य आने पर मॉडल सोचता है और उपकरण बुलाता है; परिवेश प्रक्रिया से अधिक चलता है। " * 20,
        "emoji": "🎉🚀😀👍🏽🔥✨🤖🧪" * 50,
        "blank": ("    " * 10 + "x\n") * 50,
    }


SAMPLES = _texts()
