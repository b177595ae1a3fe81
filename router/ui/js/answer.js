// One answer as it arrives: collects the pieces of a chat stream into a message, and measures. No DOM here.

import { splitReasoning } from './reasoning.js';

export class Answer {
  #text = '';
  #separate = '';
  #toolCalls = [];
  #started;
  #first = 0;
  #last = 0;
  #thoughtUntil = 0;
  #usage = null;
  #now;

  constructor(now = () => performance.now()) {
    this.#now = now;
    this.#started = now();
  }

  finishReason = null;

  add(chunk) {
    if (chunk.usage) this.#usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    this.finishReason = choice.finish_reason || this.finishReason;
    const delta = choice.delta ?? {};
    this.#text += delta.content ?? '';
    this.#separate += delta.reasoning_content ?? delta.reasoning ?? '';
    for (const call of toolCallsOf(delta)) this.#addToolCall(call);
    if (delta.content || delta.reasoning_content || delta.reasoning || delta.tool_calls) this.#mark();
  }

  // What is stored and shown: the fields of a message of role assistant.
  message() {
    const split = splitReasoning(this.#text);
    const reasoning = this.#separate || split.reasoning;
    const content = this.#separate ? this.#text : split.content;
    const thinking = content === '' && (split.open || this.#separate !== '');
    return {
      content,
      ...(reasoning && { reasoning }),
      ...(thinking && { thinking }),
      ...(this.#toolCalls.length && { toolCalls: this.#toolCalls.filter(Boolean).map((call) => ({ ...call })) }),
      stats: this.#stats(),
    };
  }

  #mark() {
    const now = this.#now();
    this.#first ||= now;
    this.#last = now;
    if (!this.#thoughtUntil && splitReasoning(this.#text).content) this.#thoughtUntil = now;
  }

  #addToolCall(call) {
    const index = call.index ?? this.#toolCalls.length;
    const known = (this.#toolCalls[index] ??= { id: '', name: '', arguments: '' });
    known.id = call.id ?? known.id;
    known.name += call.function?.name ?? '';
    const piece = call.function?.arguments ?? '';
    known.arguments += typeof piece === 'string' ? piece : JSON.stringify(piece);
  }

  #stats() {
    if (!this.#first) return {};
    const seconds = (this.#last - this.#started) / 1000;
    const usage = this.#usage && {
      promptTokens: this.#usage.prompt_tokens,
      tokens: this.#usage.completion_tokens,
      cachedTokens: this.#usage.prompt_tokens_details?.cached_tokens ?? 0,
      tokensPerSecond: rate(this.#usage.completion_tokens, this.#last - this.#first),
    };
    const thinkingMs = this.#thoughtUntil ? this.#thoughtUntil - this.#first : null;
    return { firstTokenMs: this.#first - this.#started, seconds, thinkingMs, ...usage };
  }
}

// The first token marks the start of the interval, so it does not count.
const rate = (tokens, ms) => (tokens > 1 && ms > 0 ? ((tokens - 1) * 1000) / ms : null);

// A list, as OpenAI streams it, or a single object, as TGI did.
function toolCallsOf(delta) {
  const calls = delta.tool_calls ?? [];
  return Array.isArray(calls) ? calls : [calls];
}
