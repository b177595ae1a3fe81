// Types that openapi-typescript made from the server's document, with its client: compiled by tsc, then `node
// use_generated.mjs URL`. Writes what it got as JSON.

import createClient from "openapi-fetch";
import type { components, paths } from "./penstock.js";

declare const process: { argv: string[] };

const client = createClient<paths>({ baseUrl: process.argv[2] });
const messages = [{ role: "user", content: "What is the weather in Paris?" }];
const tools: components["schemas"]["ChatTool"][] = [{
  type: "function",
  function: {
    name: "get_weather",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
}];
const asked = { messages, temperature: 0, max_tokens: 40 };

type Completion = components["schemas"]["ChatCompletion"];

// A response is a whole completion or a chunk of a stream; these requests do not ask for a stream.
const isWhole = (data: object | undefined): data is Completion => JSON.stringify(data).includes("\"message\"");

const whole = await client.POST("/v1/chat/completions", { body: asked });
const called = await client.POST("/v1/chat/completions", { body: { ...asked, tools, tool_choice: "required" } });
const refused = await client.POST("/v1/chat/completions", { body: { ...asked, top_p: 2 } });
const streamed = await client.POST("/v1/chat/completions", { body: { ...asked, stream: true }, parseAs: "text" });

let text = "";
for (const line of String(streamed.data).split("\n")) {
  if (line.startsWith("data: {")) {
    const chunk: components["schemas"]["ChatCompletionChunk"] = JSON.parse(line.slice("data: ".length));
    text += chunk.choices[0]?.delta.content ?? "";
  }
}
if (!isWhole(whole.data) || !isWhole(called.data)) {
  throw new Error("the answers are no completions");
}
const call = called.data.choices[0].message.tool_calls?.[0];
console.log(JSON.stringify({
  whole: whole.data.choices[0].message.content,
  tokens: whole.data.usage?.completion_tokens,
  streamed: text,
  call: call?.type === "function" ? [call.function.name, JSON.parse(call.function.arguments)] : null,
  refusal: refused.error?.error.param,
}));
