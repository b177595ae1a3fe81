// Characters that are written in another way: backslash escapes and character references. The result is only ever used
// as text or as an address.

// HTML names more than two thousand; these are the ones that people write.
const NAMED = new Map(Object.entries({
  amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", nbsp: '\u00a0', ensp: '\u2002', emsp: '\u2003', thinsp: '\u2009',
  hellip: '…', mdash: '—', ndash: '–', bull: '•', lsquo: '‘', rsquo: '’', ldquo: '“', rdquo: '”', prime: '′', trade: '™',
  euro: '€', larr: '←', uarr: '↑', rarr: '→', darr: '↓', harr: '↔', rArr: '⇒', lArr: '⇐', hArr: '⇔', check: '✓', star: '☆',
  forall: '∀', part: '∂', exist: '∃', empty: '∅', nabla: '∇', isin: '∈', notin: '∉', prod: '∏', sum: '∑', minus: '−',
  radic: '√', infin: '∞', and: '∧', or: '∨', cap: '∩', cup: '∪', int: '∫', sim: '∼', cong: '≅', asymp: '≈', ne: '≠',
  equiv: '≡', le: '≤', ge: '≥', sub: '⊂', sup: '⊃', sube: '⊆', supe: '⊇', oplus: '⊕', otimes: '⊗', perp: '⊥', sdot: '⋅',
  OElig: 'Œ', oelig: 'œ', Scaron: 'Š', scaron: 'š',
}));

// Those of Latin 1 and of the Greek alphabet, in the order of their code points.
const LATIN_FROM_161 = `iexcl cent pound curren yen brvbar sect uml copy ordf laquo not shy reg macr deg plusmn sup2 sup3 acute micro para
  middot cedil sup1 ordm raquo frac14 frac12 frac34 iquest Agrave Aacute Acirc Atilde Auml Aring AElig Ccedil Egrave Eacute Ecirc Euml
  Igrave Iacute Icirc Iuml ETH Ntilde Ograve Oacute Ocirc Otilde Ouml times Oslash Ugrave Uacute Ucirc Uuml Yacute THORN szlig agrave
  aacute acirc atilde auml aring aelig ccedil egrave eacute ecirc euml igrave iacute icirc iuml eth ntilde ograve oacute ocirc otilde
  ouml divide oslash ugrave uacute ucirc uuml yacute thorn yuml`;
const GREEK_FROM_913 = `Alpha Beta Gamma Delta Epsilon Zeta Eta Theta Iota Kappa Lambda Mu Nu Xi Omicron Pi Rho - Sigma Tau Upsilon Phi
  Chi Psi Omega - - - - - - - alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigmaf sigma tau
  upsilon phi chi psi omega`;

function addInOrder(names, first) {
  names.split(/\s+/).forEach((name, i) => NAMED.set(name, String.fromCodePoint(first + i)));
}

addInOrder(LATIN_FROM_161, 161);
addInOrder(GREEK_FROM_913, 913);

const REFERENCE = '&(?:#(\\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-zA-Z][a-zA-Z0-9]{0,31}));';
const REFERENCE_HERE = new RegExp(REFERENCE, 'y');
const WRITTEN_OTHERWISE = new RegExp(`\\\\([!-/:-@[-\`{-~])|${REFERENCE}`, 'g');

// The reference that starts at `position`: what it stands for and where it ends. Null if there is none that is known.
export function referenceAt(text, position) {
  REFERENCE_HERE.lastIndex = position;
  const found = REFERENCE_HERE.exec(text);
  const character = found && meaning(found[1], found[2], found[3]);
  return character ? { character, end: REFERENCE_HERE.lastIndex } : null;
}

export function unescape(text) {
  return text.replace(WRITTEN_OTHERWISE, (all, escaped, decimal, hex, name) => escaped ?? meaning(decimal, hex, name) ?? all);
}

function meaning(decimal, hex, name) {
  if (name) return NAMED.get(name);
  const code = decimal ? Number(decimal) : parseInt(hex, 16);
  const isCharacter = code > 0 && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  return isCharacter ? String.fromCodePoint(code) : '\ufffd';
}
