// Writes the output of a handler's `console` as Lambda does: each call makes one line in the log.
//
// A text line contains time, request id, level and message. With AWS_LAMBDA_LOG_FORMAT=JSON, a line is an object with
// these fields, and is written only if its level is at least AWS_LAMBDA_LOG_LEVEL.
// Source: AWS Lambda developer guide, "Using the JSON log format with Node.js".

import fs from "node:fs";
import { format } from "node:util";

const METHODS = { trace: "TRACE", debug: "DEBUG", log: "INFO", info: "INFO", warn: "WARN", error: "ERROR" };
const LEVELS = ["TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"];
const isJson = process.env.AWS_LAMBDA_LOG_FORMAT === "JSON";
const least = isJson ? Math.max(0, LEVELS.indexOf((process.env.AWS_LAMBDA_LOG_LEVEL ?? "").toUpperCase())) : 0;
let requestId;

/** Set the request id for later lines. */
export function setRequestId(id) {
  requestId = id;
}

/** Replace the methods of `console`. */
export function installConsole() {
  for (const [method, level] of Object.entries(METHODS)) {
    console[method] = (...values) => write(level, values);
  }
}

/** Write an entry that comes from the runtime itself, not from the handler. */
export function writeLog(level, message) {
  write(level, [message]);
}

function write(level, values) {
  if (LEVELS.indexOf(level) < least) return;
  const timestamp = new Date().toISOString();
  if (isJson) {
    writeLine(JSON.stringify({ timestamp, level, requestId, ...contentOf(values) }, withoutCircles()));
  } else {
    // A line feed within an entry is written as a carriage return, so that the entry stays one line.
    writeLine(`${timestamp}\t${requestId ?? "undefined"}\t${level}\t${format(...values).replace(/\n/g, "\r")}`);
  }
}

/** The fields of an entry: a single object is kept unchanged, anything else becomes text. An error adds its parts. */
function contentOf(values) {
  const error = values.find((value) => value instanceof Error);
  const [only] = values;
  const isObject = values.length === 1 && typeof only === "object" && only !== null;
  const message = isObject && error === undefined ? only : format(...values);
  if (error === undefined) return { message };
  const stackTrace = String(error.stack).split("\n");
  const parts = { errorType: error.name, errorMessage: error.message, stackTrace };
  return isObject ? parts : { message, ...parts };
}

/** A replacer for JSON.stringify that can handle circular objects and big integers, which would raise an error. */
function withoutCircles() {
  const holders = [];
  return function (_, value) {
    if (typeof value === "bigint") return value.toString();
    if (typeof value !== "object" || value === null) return value;
    while (holders.length > 0 && holders.at(-1) !== this) holders.pop();
    if (holders.includes(value)) return "[Circular]";
    holders.push(value);
    return value;
  };
}

/** Write a line synchronously, because buffered output would be lost when the process is killed. */
function writeLine(text) {
  const line = Buffer.from(`${text}\n`);
  for (let at = 0; at < line.length; ) {
    try {
      at += fs.writeSync(1, line, at);
    } catch (error) {
      if (error.code !== "EAGAIN") return;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 5);
    }
  }
}
