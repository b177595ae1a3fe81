// Addresses that stand in the text without any marks, as GitHub's Markdown has them.

// Where one may start; a pattern that reads plain text stops there.
export const WEB_ADDRESS_AHEAD = 'https?:\\/\\/|www\\.';

const WEB_ADDRESS = new RegExp(`(?:${WEB_ADDRESS_AHEAD})[^\\s<>"\`*|[\\]\\\\]+`, 'iy');
const MAIL_ADDRESS = /(?<![\w.+-])[\w.+-]+@[a-z0-9-]+(?:\.[a-z0-9-]+)+/gi;
const HAS_HOST = /^(?:https?:\/\/|www\.)[\p{L}\p{N}]/iu;
const LETTER = /[\p{L}\p{N}]/u;

// The web address at `position`, or null.
export function webAddressAt(text, position) {
  if (position > 0 && LETTER.test(text[position - 1])) return null;
  WEB_ADDRESS.lastIndex = position;
  const found = WEB_ADDRESS.exec(text)?.[0];
  const shown = found && withoutEndOfSentence(found);
  if (!shown || !HAS_HOST.test(shown)) return null;
  return { text: shown, href: /^www/i.test(shown) ? `http://${shown}` : shown };
}

// A full stop or a closing parenthesis after an address belongs to the sentence.
function withoutEndOfSentence(address) {
  let end = address.length;
  let unopened = address.split(')').length - address.split('(').length;
  for (; end > 0; end -= 1) {
    const last = address[end - 1];
    if (last === ')' && unopened > 0) unopened -= 1;
    else if (!"?!.,:;_~'".includes(last)) break;
  }
  return address.slice(0, end);
}

// The text with its mail addresses cut out: pieces {text, isMail}.
export function mailAddressesApart(text) {
  const pieces = [];
  let end = 0;
  for (const { 0: mail, index } of text.includes('@') ? text.matchAll(MAIL_ADDRESS) : []) {
    pieces.push({ text: text.slice(end, index), isMail: false }, { text: mail, isMail: true });
    end = index + mail.length;
  }
  return [...pieces, { text: text.slice(end), isMail: false }].filter((piece) => piece.text);
}
