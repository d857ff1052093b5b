// A program that knows the API by openapi.json alone. Arguments: the URL of a manager, the bucket.
import createClient from "openapi-fetch";
import type { components, paths } from "./api.js";

declare const process: { argv: string[]; exit(code: number): never };

async function run(baseUrl: string, bucket: string): Promise<void> {
  const c = createClient<paths>({ baseUrl });
  const statement = `CREATE INDEX by_ts ON ${bucket}(name)`;
  const made = await c.POST("/v1/statements", { body: { statement } });
  if (!made.data) throw new Error(JSON.stringify(made.error));
  const again = await c.POST("/v1/statements", { body: { statement } });
  if (again.error?.code !== "NAME_EXISTS") throw new Error(`made twice: ${JSON.stringify(again)}`);
  const path = { bucket, name: "by_ts" };
  for (let i = 0; ; i++) {
    const x = await c.GET("/v1/indexes/{bucket}/{name}", { params: { path } });
    if (!x.data) throw new Error(JSON.stringify(x.error));
    if (x.data.state === "ready") break;
    if (i > 2000) throw new Error(`the index is ${x.data.state}`);
    await new Promise((done) => setTimeout(done, 50));
  }
  const counted = await c.POST("/v1/indexes/{bucket}/{name}:count", { params: { path }, body: { consistency: "session" } });
  if (!counted.data) throw new Error(JSON.stringify(counted.error));
  const rows = await c.POST("/v1/indexes/{bucket}/{name}:scan", {
    params: { path },
    body: { equal: ["France"], limit: 10, consistency: "session" },
    parseAs: "text",
  });
  if (typeof rows.data !== "string") throw new Error(JSON.stringify(rows.error));
  const row = JSON.parse(rows.data.split("\n")[0]) as components["schemas"]["Row"];
  console.log(counted.data.count, JSON.stringify(row.key), row.id);
}

run(process.argv[2], process.argv[3]).catch((e) => {
  console.error(e);
  process.exit(1);
});
