// What the unit tests look at, in one module.
export * from "../src/model/describe.js";
export * from "../src/model/diff.js";
export * from "../src/model/fold.js";
export * from "../src/model/gone.js";
export * from "../src/model/lanes.js";
export * from "../src/model/raw.js";
export * from "../src/model/search.js";
export { output } from "../src/model/read.js";
export * from "../src/model/text.js";
export * from "../src/model/time.js";
export * from "../src/model/usage.js";
