// Program: `node bootstrap.mjs`. Runs a function's Node handler over AWS Lambda's Runtime API. Imports only Node's modules.
//
// Lambda's environment variables describe the function: _HANDLER, LAMBDA_TASK_ROOT, AWS_LAMBDA_RUNTIME_API.
// Source: AWS Lambda developer guide, "Define Lambda function handler in Node.js", "Using the Lambda runtime API".

import { RuntimeApi } from "./api.mjs";
import { documentOf, textOf } from "./errors.mjs";
import { loadHandler } from "./handler.mjs";
import { run } from "./invocation.mjs";
import { installConsole, setRequestId, writeLog } from "./logs.mjs";
import { keepHere, searchNodePath } from "./sdk.mjs";
import { installStreaming } from "./streaming.mjs";

const api = new RuntimeApi(process.env.AWS_LAMBDA_RUNTIME_API);
let currentId = null; // request id of the invocation that is running

/** Report to the platform that the program cannot continue, then end it. */
async function giveUp(error, errorType) {
  const document = documentOf(error, errorType);
  writeLog("ERROR", `${errorType ?? "Uncaught Exception"} \t${textOf(document)}`);
  try {
    if (currentId === null) await api.initError(document);
    else await api.error(currentId, document);
  } finally {
    process.exit(currentId === null ? 1 : 129);
  }
}

process.on("uncaughtException", (error) => giveUp(error));
process.on("unhandledRejection", (reason) => {
  const error = new Error(reason instanceof Error ? `${reason.name}: ${reason.message}` : String(reason));
  error.name = "Runtime.UnhandledPromiseRejection";
  if (reason instanceof Error) error.stack = reason.stack;
  giveUp(error, error.name);
});

async function main() {
  installConsole();
  installStreaming();
  searchNodePath();
  keepHere();
  let handler;
  try {
    handler = await loadHandler(process.env.LAMBDA_TASK_ROOT, process.env._HANDLER);
  } catch (error) {
    await giveUp(error);
    return;
  }
  for (;;) {
    const invocation = await api.next();
    currentId = invocation.id;
    setRequestId(invocation.id);
    if (invocation.traceId) process.env._X_AMZN_TRACE_ID = invocation.traceId;
    else delete process.env._X_AMZN_TRACE_ID;
    await run(handler, invocation, api);
    currentId = null;
  }
}

await main();
