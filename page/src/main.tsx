import { render } from "preact";

import { startClock } from "./live/clock.js";
import { startRuns } from "./live/runs.js";
import { App, startApp } from "./view/app.js";
import { startRoutes } from "./view/route.js";

const root = document.getElementById("app");
if (root !== null) {
  startClock();
  startRoutes();
  startApp();
  startRuns();
  render(<App />, root);
}
