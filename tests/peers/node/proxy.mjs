// A TCP proxy that breaks connections after so many bytes from the server, wherever in a message that is.
import net from "node:net";

const AFTERMATH_MS = 2000;

/**
 * `budgets` are used up one after another: when one is, every connection through the proxy is broken, half of the
 * times by a reset. Without a budget left it only passes on. `proxy.cuts` and `proxy.bytes` count.
 */
export async function cuttingProxy(base, budgets, random) {
  const target = new URL(base);
  const pairs = new Set();
  const waiting = [...budgets];
  let left = waiting.shift();
  const proxy = { base: "", bytes: 0, cuts: 0, explainsDrop, close };
  let noticed = 0;
  let lastCut = -Infinity;

  const server = net.createServer((near) => {
    const far = net.connect({ host: target.hostname, port: Number(target.port || 80) });
    const pair = { near, far };
    pairs.add(pair);
    const end = () => {
      pairs.delete(pair);
      near.destroy();
      far.destroy();
    };
    for (const socket of [near, far]) {
      socket.setNoDelay(true);
      socket.on("error", end);
      socket.on("close", end);
    }
    near.pipe(far);
    far.on("end", () => near.end());
    far.on("data", (chunk) => {
      if (left !== undefined && chunk.length >= left) {
        near.write(chunk.subarray(0, left));
        cut();
        return;
      }
      proxy.bytes += chunk.length;
      if (left !== undefined) left -= chunk.length;
      if (!near.write(chunk)) {
        far.pause();
        near.once("drain", () => far.resume());
      }
    });
  });

  function cut() {
    proxy.bytes += left;
    proxy.cuts += 1;
    lastCut = performance.now();
    left = waiting.shift();
    const reset = random() < 0.5;
    for (const { near, far } of pairs) {
      far.removeAllListeners("data");
      far.destroy();
      if (reset) near.resetAndDestroy();
      else near.end(() => near.destroy());
    }
    pairs.clear();
  }

  /** Whether a drop that a client saw is of our making: it may see one late, or twice. */
  function explainsDrop() {
    if (proxy.cuts === noticed) return performance.now() - lastCut < AFTERMATH_MS;
    noticed += 1;
    return true;
  }

  function close() {
    for (const { near, far } of pairs) {
      near.destroy();
      far.destroy();
    }
    server.close();
  }

  await new Promise((resolve, reject) => server.once("error", reject).listen(0, "127.0.0.1", resolve));
  proxy.base = `http://127.0.0.1:${server.address().port}`;
  return proxy;
}
