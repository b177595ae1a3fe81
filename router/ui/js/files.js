// Files of text that go along with a message: read in the browser, and sent as code blocks after the text.

const MAX_FILES = 10;
const MAX_BYTES = 256 * 1024;

// Reads what was chosen, dropped or pasted, beside `known` files: {files: [{name, text}], problems: [sentence]}.
export async function readFiles(list, known = []) {
  const [files, problems] = [[...known], []];
  for (const file of list) {
    if (files.length === MAX_FILES) {
      problems.push(`A message takes at most ${MAX_FILES} files.`);
      break;
    }
    try {
      files.push({ name: file.name, text: await textOf(file) });
    } catch (error) {
      problems.push(error.message);
    }
  }
  return { files, problems };
}

async function textOf(file) {
  if (file.size > MAX_BYTES) throw new Error(`${file.name} is larger than ${MAX_BYTES / 1024} KiB.`);
  const bytes = await file.arrayBuffer().catch(() => { throw new Error(`${file.name} cannot be read.`); });
  try {
    const text = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
    if (!text.includes('\0')) return text;
  } catch {
    // Not UTF-8: said below.
  }
  throw new Error(`${file.name} is not a file of text.`);
}

// The text of a message with its files, as the model gets it.
export const withFiles = (content, files = []) =>
  [content, ...files.map(({ name, text }) => `File \`${name}\`:\n\n${fenced(text, languageOf(name))}`)].filter(Boolean).join('\n\n');

// A code block of Markdown. The fence is longer than any run of backticks in the text, so that the text cannot end it.
export function fenced(text, language = '') {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
  const fence = '`'.repeat(longest + 1);
  return `${fence}${language}\n${text.replace(/\n$/, '')}\n${fence}`;
}

const languageOf = (name) => /\.([a-z0-9]+)$/i.exec(name)?.[1].toLowerCase() ?? '';
