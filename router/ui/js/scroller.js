// Keeps a growing thread at its end while the reader is there, and leaves it alone once the reader scrolls up; then a
// button leads back.

const NEAR_PX = 48;

export class Scroller {
  #area;
  #button;
  #following = true;

  constructor(area, button) {
    this.#area = area;
    this.#button = button;
    area.addEventListener('scroll', () => this.#onScroll(), { passive: true });
    button.addEventListener('click', () => this.toEnd());
    new ResizeObserver(() => this.#following && this.#jump()).observe(area);
  }

  // Runs a change of the content and stays at the end if it was there.
  keep(change) {
    change();
    if (this.#following) this.#jump();
    else this.#onScroll();
  }

  toEnd() {
    this.#following = true;
    this.#button.hidden = true;
    this.#jump();
  }

  #onScroll() {
    const { scrollHeight, scrollTop, clientHeight } = this.#area;
    this.#following = scrollHeight - scrollTop - clientHeight < NEAR_PX;
    this.#button.hidden = this.#following;
  }

  #jump() {
    this.#area.scrollTop = this.#area.scrollHeight;
  }
}
