// What a handler prints through `console`, as Lambda writes it: one line of the log for each call.
//
// In text: time, request id, level, message. As JSON (AWS_LAMBDA_LOG_FORMAT): an object with these, from the level on that
// AWS_LAMBDA_LOG_LEVEL names. Source: AWS Lambda developer guide, "Using the JSON log format with Node.js".

import fs from "node:fs";
import { format } from "node:util";

const METHODS = { trace: "TRACE", debug: "DEBUG", log: "INFO", info: "INFO", warn: "WARN", error: "ERROR" };
const LEVELS = ["TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"];
const isJson = process.env.AWS_LAMBDA_LOG_FORMAT === "JSON";
const least = isJson ? Math.max(0, LEVELS.indexOf((process.env.AWS_LAMBDA_LOG_LEVEL ?? "").toUpperCase())) : 0;
let requestId;

/** Which invocation the lines from now on belong to. */
export function setRequestId(id) {
  requestId = id;
}

/** Have `console` write so from now on. */
export function installConsole() {
  for (const [method, level] of Object.entries(METHODS)) {
    console[method] = (...values) => write(level, values);
  }
}

/** One entry of the runtime's own. */
export function writeLog(level, message) {
  write(level, [message]);
}

function write(level, values) {
  if (LEVELS.indexOf(level) < least) return;
  const timestamp = new Date().toISOString();
  if (isJson) {
    writeLine(JSON.stringify({ timestamp, level, requestId, ...contentOf(values) }, withoutCircles()));
  } else {
    // A line feed within an entry is written as a carriage return, so that it stays one.
    writeLine(`${timestamp}\t${requestId ?? "undefined"}\t${level}\t${format(...values).replace(/\n/g, "\r")}`);
  }
}

/** A single object as it is, anything else as text; of an error among them its parts. */
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

/** For JSON.stringify: an object that holds itself, and numbers that JSON lacks, do not fail an entry. */
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

/** Written at once: what is still in a buffer when the process is ended is lost. */
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
