// Server-sent events that resume where they broke off, and say how they are.

const PAUSE_SECONDS = [1, 2, 5, 10];

/**
 * Follows a stream of live events.
 *
 * `address` is the stream's path. `lastId` is where to begin, or null. `on` has a function for each type of event, and
 * for any other `on.event`. `on.state` is told "connected", "disconnected" or "ended". The browser's own EventSource
 * gives up when a server answers 503, and cannot be told where to begin; so the pauses are ours.
 *
 * A hidden page closes its stream, because a browser has six connections to a host for all its pages.
 */
export class Stream {
  constructor(address, { lastId = null, on }) {
    this.address = address;
    this.lastId = lastId;
    this.on = on;
    this.failures = 0;
    this.isEnded = false;
    document.addEventListener("visibilitychange", this.#show);
    this.#show();
  }

  /** Ends it for good. */
  end() {
    this.isEnded = true;
    this.#close();
    document.removeEventListener("visibilitychange", this.#show);
    this.on.state?.("ended");
  }

  #show = () => {
    if (document.hidden) this.#close();
    else if (!this.isEnded) this.#open();
  };

  #close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  #open() {
    this.#close();
    const address = new URL(this.address, location.href);
    if (this.lastId !== null) address.searchParams.set("last_event_id", this.lastId);
    const source = new EventSource(address);
    this.source = source;
    source.onopen = () => {
      this.failures = 0;
      this.on.state?.("connected");
    };
    source.onerror = () => {
      if (source !== this.source) return;
      this.#close();
      this.on.state?.("disconnected");
      const pause = PAUSE_SECONDS[Math.min(this.failures++, PAUSE_SECONDS.length - 1)];
      this.timer = setTimeout(() => this.#open(), pause * 1000 * (0.75 + Math.random() / 2));
    };
    const handle = (event) => {
      if (source !== this.source) return;
      if (event.lastEventId) this.lastId = event.lastEventId;
      const message = JSON.parse(event.data);
      (this.on[event.type] ?? this.on.event)?.(message, event.lastEventId);
    };
    for (const type of TYPES) source.addEventListener(type, handle);
  }
}

const TYPES = [
  "timeline_event.created",
  "timeline_event.completed",
  "stream.chunk",
  "stage.started",
  "stage.completed",
  "investigation.status",
  "investigation.deleted",
  "investigation.completed",
  "question.completed",
  "catchup.overflow",
  "subscription.ended",
];
