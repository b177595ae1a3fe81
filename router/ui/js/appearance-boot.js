// Applies the chosen light or dark theme before the first paint. A classic script, so that it runs before the body;
// the toggle itself is in appearance.js.
'use strict';
try {
  const theme = localStorage.getItem('penstock.theme');
  if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
} catch {
  // Storage is switched off: the theme of the system is used.
}
