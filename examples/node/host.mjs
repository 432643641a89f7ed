// A tool host in JavaScript whose only tool reads: `npm install && node host.mjs`.
//
// It is examples/read_only_host.py in another language; docs/bus/README.md says what each message means.

import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { hostname } from "node:os";
import { connect, headers } from "nats";

const PREFIX = "perdure";
const BOOT = `b${randomBytes(8).toString("hex")}`;
const TOOL = {
  name: "slugify",
  description: "A title as it may stand in an address.",
  parameters: { type: "object", properties: { title: { type: "string" } }, required: ["title"] },
  semantics: "READ_ONLY",
  needs_workspace: false,
};
const CATALOG = { boot: BOOT, replica: "slugs", host: hostname(), tools: [TOOL] };
const LEASE = {
  boot: BOOT, service: "slugs", replica: "slugs", host: hostname(), pid: process.pid,
  process_start: 0, slots: 0, free: 0, model_configured: false,
};

const access = JSON.parse(readFileSync(process.env.NATS_JSON ?? ".perdure/nats.json", "utf8"));
const connection = await connect({ servers: access.url, user: access.user, pass: access.password });
const stream = connection.jetstream();

connection.subscribe(`${PREFIX}.ctl.${BOOT}`, {
  callback: (_, message) => message.respond(JSON.stringify({ boot: BOOT })),
});

connection.subscribe(`${PREFIX}.call.host.${BOOT}`, {
  callback: (_, message) => {
    const { call_id, attempt, arguments: given } = message.json();
    const slug = given.title.normalize("NFKD").toLowerCase().match(/[a-z0-9]+/g)?.join("-");
    const output = slug ?? "there is no letter or digit in this title";
    message.respond(JSON.stringify({ call_id, attempt, ok: slug !== undefined, output }));
  },
});

// Say that this process lives and what it offers. A lease is written by compare-and-set: when somebody wrote this boot's
// death meanwhile, the write is refused, this process ends, and the next one is a new boot.
let revision = 0;
async function renew() {
  const lease = headers();
  lease.set("Nats-TTL", "10s");
  lease.set("Nats-Expected-Last-Subject-Sequence", `${revision}`);
  const offer = headers();
  offer.set("Nats-TTL", "15s");
  revision = (
    await stream.publish(`$KV.${PREFIX}-leases.replica.${BOOT}`, JSON.stringify(LEASE), { headers: lease })
  ).seq;
  await stream.publish(`$KV.${PREFIX}-catalog.${BOOT}`, JSON.stringify(CATALOG), { headers: offer });
  setTimeout(renew, 1000);
}
await renew();
