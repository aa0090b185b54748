// The init phase: find and import the function's handler, as Lambda's Node runtime does.
//
// It supports `.js`, `.mjs` and `.cjs` files, folders in front of the file's name, and handlers nested in an export
// (`index.api.get`). Source: AWS Lambda developer guide, "Define Lambda function handler in Node.js".

import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

import { fault } from "./errors.mjs";
import { hint } from "./sdk.mjs";

const HANDLER = /^([^.]*)\.(.*)$/;

/** The function that the handler name `name` refers to in the code folder `root`. */
export async function loadHandler(root, name) {
  const base = path.basename(name);
  const folder = path.join(root, name.slice(0, name.length - base.length));
  const match = HANDLER.exec(base);
  if (match === null || match[1] === "" || match[2] === "") {
    throw fault("Runtime.MalformedHandlerName", `Bad handler '${name}': it must be file.export`);
  }
  if (path.relative(root, folder).split(path.sep)[0] === "..") {
    throw fault("Runtime.MalformedHandlerName", `Bad handler '${name}': it leads outside the code folder`);
  }
  const module = await load(path.join(folder, match[1]), root);
  const parts = match[2].split(".");
  const handler = reach(module, parts) ?? reach(module.default, parts);
  if (handler === undefined) {
    throw fault("Runtime.HandlerNotFound", `${name} is undefined or not exported`);
  }
  if (typeof handler !== "function") {
    throw fault("Runtime.HandlerNotFound", `${name} is not a function`);
  }
  return handler;
}

function reach(value, parts) {
  return parts.reduce((inner, part) => (inner === undefined || inner === null ? undefined : inner[part]), value);
}

async function load(stem, root) {
  const file = [`${stem}.mjs`, `${stem}.js`, `${stem}.cjs`, stem].find((one) => isFile(one));
  if (file === undefined) {
    const wanted = path.relative(root, stem);
    throw fault("Runtime.ImportModuleError", `Cannot find module '${wanted}': there is no ${wanted}.mjs, .js or .cjs`);
  }
  try {
    // A CommonJS module is loaded by `require`: `import` would not see exports that are assigned dynamically.
    if (!(await isModule(file))) return createRequire(path.join(root, "/"))(file);
    return await import(pathToFileURL(file).href);
  } catch (error) {
    if (error instanceof SyntaxError) throw retyped("Runtime.UserCodeSyntaxError", error);
    if (error?.code === "MODULE_NOT_FOUND" || error?.code === "ERR_MODULE_NOT_FOUND") {
      error.message += hint(error);
      throw retyped("Runtime.ImportModuleError", error);
    }
    throw error;
  }
}

/** A copy of `error` with one of Lambda's error types and a message such as `SyntaxError: …`. */
function retyped(errorType, error) {
  const typed = fault(errorType, errorType === "Runtime.UserCodeSyntaxError" ? `SyntaxError: ${error.message}` : `Error: ${error.message}`);
  typed.stack = `${errorType}: ${error.stack}`;
  return typed;
}

/** Whether Node treats a file as an ES module, by its suffix or by the nearest package.json. */
async function isModule(file) {
  if (file.endsWith(".mjs")) return true;
  if (!file.endsWith(".js")) return false;
  for (let folder = path.dirname(file); ; folder = path.dirname(folder)) {
    const description = path.join(folder, "package.json");
    if (isFile(description)) return JSON.parse(fs.readFileSync(description, "utf8")).type === "module";
    if (folder === path.dirname(folder)) return false;
  }
}

function isFile(file) {
  return fs.statSync(file, { throwIfNoEntry: false })?.isFile() ?? false;
}
