// Hooks for `import`: a module that Node does not find is also searched for on NODE_PATH, as in Lambda's Node runtime.
//
// Node itself uses NODE_PATH only for `require`. Source: Node.js documentation, "Module: customization hooks"; AWS Lambda
// developer guide, "Working with layers for Node.js Lambda functions".

import path from "node:path";
import { pathToFileURL } from "node:url";

/** For each folder on NODE_PATH, the URL of an imaginary module whose imports are searched for in that folder. */
function parents() {
  return (process.env.NODE_PATH ?? "")
    .split(path.delimiter)
    .filter((folder) => path.basename(folder) === "node_modules")
    .map((folder) => pathToFileURL(path.join(path.dirname(folder), "any.mjs")).href);
}

const isBare = (specifier) => !/^(\.{0,2}\/|[a-z][a-z0-9+.-]*:|#)/i.test(specifier);

export async function resolve(specifier, context, nextResolve) {
  try {
    return await nextResolve(specifier, context);
  } catch (error) {
    if (error?.code !== "ERR_MODULE_NOT_FOUND" || !isBare(specifier)) throw error;
    for (const parentURL of parents()) {
      try {
        return await nextResolve(specifier, { ...context, parentURL });
      } catch (other) {
        if (other?.code !== "ERR_MODULE_NOT_FOUND") throw other;
      }
    }
    throw error;
  }
}
