// Runs one invocation: makes the context, calls the handler, and sends its answer or its error to the platform.

import { types } from "node:util";

import { documentOf, fault, textOf } from "./errors.mjs";
import { writeLog } from "./logs.mjs";
import { isStreaming, stream } from "./streaming.mjs";

const TOO_LARGE = 413;
const LEFT = "The Lambda runtime client detected an unexpected Node.js exit code.";
const { isAsyncFunction } = types;

/** Run `handler` on `invocation` and send its answer or its error. */
export async function run(handler, invocation, api) {
  let answer;
  try {
    const event = parse(invocation.body);
    if (isStreaming(handler)) {
      await stream(handler, event, contextOf(invocation).context, { id: invocation.id, api });
      return;
    }
    answer = serialise(await call(handler, event, invocation));
  } catch (error) {
    const document = documentOf(error);
    writeLog("ERROR", `Invoke Error \t${textOf(document)}`);
    await api.error(invocation.id, document);
    return;
  }
  try {
    await api.response(invocation.id, answer);
  } catch (error) {
    // The answer is too large. The platform has already sent the caller an error, and the environment continues.
    if (error.status !== TOO_LARGE) throw error;
    writeLog("ERROR", error.message);
  }
}

/**
 * The answer of a handler: the promise that it returns, or the value that it passes to the callback. Any other return
 * value is ignored.
 *
 * Node emits `beforeExit` when its event loop is empty. An answer by callback is sent then, or immediately if the
 * handler has set `callbackWaitsForEmptyEventLoop` to false. A handler that has not answered by then never will.
 */
function call(handler, event, invocation) {
  const { context, state } = contextOf(invocation);
  let whenIdle;
  const outcome = new Promise((resolve, reject) => {
    whenIdle = () => {
      if (isAsyncFunction(handler)) reject(fault("Runtime.NodeJsExit", LEFT));
      else resolve(null);
    };
    const settle = (error, value) => (isNothing(error) ? resolve(value) : reject(error));
    context.done = settle;
    context.succeed = resolve;
    context.fail = (error) => reject(error ?? "handled");
    const callback = (error, value) => {
      if (isNothing(error) && state.waits) whenIdle = () => resolve(value);
      else settle(error, value);
    };
    const result = handler(event, context, callback);
    if (typeof result?.then === "function") result.then(resolve, reject);
  });
  const idle = () => whenIdle();
  process.once("beforeExit", idle);
  return outcome.finally(() => process.removeListener("beforeExit", idle));
}

function isNothing(value) {
  return value === null || value === undefined;
}

function contextOf(invocation) {
  const env = process.env;
  const state = { waits: true };
  const context = {
    functionName: env.AWS_LAMBDA_FUNCTION_NAME,
    functionVersion: env.AWS_LAMBDA_FUNCTION_VERSION,
    memoryLimitInMB: env.AWS_LAMBDA_FUNCTION_MEMORY_SIZE,
    logGroupName: env.AWS_LAMBDA_LOG_GROUP_NAME,
    logStreamName: env.AWS_LAMBDA_LOG_STREAM_NAME,
    awsRequestId: invocation.id,
    invokedFunctionArn: invocation.arn,
    clientContext: parse(invocation.clientContext),
    identity: parse(invocation.identity),
    tenantId: invocation.tenantId,
    getRemainingTimeInMillis: () => Math.max(0, invocation.deadlineMs - Date.now()),
  };
  Object.defineProperty(context, "callbackWaitsForEmptyEventLoop", {
    enumerable: true,
    get: () => state.waits,
    set: (value) => (state.waits = Boolean(value)),
  });
  return { context, state };
}

function parse(text) {
  if (text === undefined || text === "") return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw fault("Runtime.UnmarshalError", `Unable to unmarshal input: ${error.message}`);
  }
}

function serialise(value) {
  try {
    return JSON.stringify(value === undefined ? null : value) ?? "null";
  } catch (error) {
    throw fault("Runtime.MarshalError", `Unable to stringify response body: ${error.message}`);
  }
}
