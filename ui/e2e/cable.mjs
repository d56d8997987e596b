// A way to the server that a test can cut, as a proxy or a network in between does: the server itself goes on.
import { connect, createServer } from "node:net";

export class Cable {
  constructor(port) {
    this.sockets = new Set();
    this.isCut = false;
    this.ends = createServer((near) => {
      if (this.isCut) return near.destroy();
      const far = connect(port, "127.0.0.1");
      for (const [one, other] of [
        [near, far],
        [far, near],
      ]) {
        this.sockets.add(one);
        one.pipe(other);
        one.on("error", () => other.destroy());
        one.on("close", () => {
          this.sockets.delete(one);
          other.destroy();
        });
      }
    });
  }

  async start() {
    this.ends.listen(0, "127.0.0.1");
    await new Promise((wake) => this.ends.once("listening", wake));
    this.url = `http://127.0.0.1:${this.ends.address().port}`;
    return this;
  }

  cut() {
    this.isCut = true;
    for (const socket of this.sockets) socket.destroy();
  }

  mend() {
    this.isCut = false;
  }

  remove() {
    this.cut();
    this.ends.close();
  }
}
