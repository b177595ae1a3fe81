// Shares a conversation as Markdown: copies it, and offers it as a file.

import { copy } from './copy.js';
import { download } from './download.js';
import { markdownOf } from './markdown-of.js';
import { toast } from './toast.js';

export async function share(conversation) {
  const text = markdownOf(conversation);
  const save = () => download(`${fileName(conversation.title)}.md`, 'text/markdown', text);
  toast(await copy(text) ? 'Copied as Markdown' : 'Copying failed', { label: 'Save as a file', run: save });
}

const fileName = (title) => title.replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-+|-+$/g, '').slice(0, 60) || 'conversation';
