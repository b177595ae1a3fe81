// Talking to the server this page came from: one place for addresses, the key, and what errors look like. Paths are
// relative to the page, so it also works behind a proxy that adds a prefix.

import { apiKey } from './key.js';
import { readEvents } from './sse.js';

// `kind` is what the page acts on: unreachable, unauthorized, overloaded, unavailable (503), refused (4xx), failed,
// cut (the stream ended too early) or interrupted (an error event without a status). `message` is the server's own where it sent one.
export class ApiError extends Error {
  constructor(kind, message, { status = 0, retryAfter = 0 } = {}) {
    super(message);
    this.kind = kind;
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

const address = (path) => new URL(path, document.baseURI);

function headers(body) {
  const key = apiKey();
  return {
    ...(key && { Authorization: `Bearer ${key}` }),
    ...(body && { 'Content-Type': 'application/json' }),
  };
}

async function request(path, { body, signal }) {
  const init = { method: body ? 'POST' : 'GET', headers: headers(body), body: body && JSON.stringify(body), signal };
  let response;
  try {
    response = await fetch(address(path), { ...init, cache: 'no-store', credentials: 'same-origin' });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError('unreachable', 'The server cannot be reached.');
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

export async function getJson(path, signal) {
  const response = await request(path, { signal });
  return response.json();
}

// The events of a streaming request, parsed. Ends normally only at `[DONE]`.
export async function* streamJson(path, body, signal) {
  const response = await request(path, { body, signal });
  try {
    for await (const data of readEvents(response.body)) {
      if (data === '[DONE]') return;
      yield parseEvent(data);
    }
  } catch (error) {
    if (error instanceof ApiError || error.name === 'AbortError') throw error;
    throw new ApiError('cut', 'The connection broke before the answer was complete.');
  }
  throw new ApiError('cut', 'The connection was closed before the answer was complete.');
}

function parseEvent(data) {
  let event;
  try {
    event = JSON.parse(data);
  } catch {
    throw new ApiError('interrupted', `The server sent something that is not JSON: ${data.slice(0, 200)}`);
  }
  if (event?.error) {
    const status = event.error.http_status_code ?? 0;
    throw new ApiError(status ? kindOf(status) : 'interrupted', messageOf(event) ?? 'The answer was interrupted.', { status });
  }
  return event;
}

async function errorOf(response) {
  const text = await response.text().catch(() => '');
  let message = text.slice(0, 2000).trim();
  try {
    message = messageOf(JSON.parse(text)) ?? message;
  } catch {
    // Plain text, or nothing.
  }
  const retryAfter = Number(response.headers.get('retry-after')) || 0;
  const { status } = response;
  return new ApiError(kindOf(status), message || `The server answered ${status}.`, { status, retryAfter });
}

// {"error": "text", …} as TGI has it, {"error": {"message": "text", …}} as OpenAI has it.
function messageOf(body) {
  const error = body?.error;
  return typeof error === 'string' ? error : (error?.message ?? body?.message);
}

function kindOf(status) {
  if (status === 401 || status === 403) return 'unauthorized';
  if (status === 429) return 'overloaded';
  if (status === 503) return 'unavailable';
  // 424 is TGI's status for a generation that failed.
  return status < 500 && status !== 424 ? 'refused' : 'failed';
}
