// Response streaming for handlers: `awslambda.streamifyResponse` and `awslambda.HttpResponseStream.from`.
//
// Source: AWS Lambda developer guide, "Writing response streaming-enabled Lambda functions".

import { documentOf, textOf } from "./errors.mjs";
import { writeLog } from "./logs.mjs";

const STREAMING = Symbol.for("aws.lambda.runtime.handler.streaming");
const TOO_LARGE = 413;
const PRELUDE_TYPE = "application/vnd.awslambda.http-integration-response";
const END_OF_PRELUDE = Buffer.alloc(8);

/** Install the global `awslambda`. */
export function installStreaming() {
  globalThis.awslambda = {
    streamifyResponse(handler) {
      handler[STREAMING] = "response";
      return handler;
    },
    HttpResponseStream: {
      from(stream, prelude) {
        stream.setContentType(PRELUDE_TYPE);
        stream.write(Buffer.concat([Buffer.from(JSON.stringify(prelude)), END_OF_PRELUDE]));
        return stream;
      },
    },
  };
}

/** Whether `handler` was marked by `streamifyResponse`. */
export function isStreaming(handler) {
  return handler[STREAMING] === "response";
}

/** Run a handler that writes its response as a stream. */
export async function stream(handler, event, context, { id, api }) {
  const { request, done } = api.stream(id, "application/octet-stream");
  request.setContentType = (type) => request.setHeader("Content-Type", type);
  // The answer is too large. The platform has already sent the caller an error, and the environment continues.
  const taken = done.catch((error) => {
    if (error.status !== TOO_LARGE) throw error;
    writeLog("ERROR", error.message);
  });
  taken.catch(() => {}); // `taken` is awaited below; this handles a failure that happens earlier
  try {
    await handler(event, request, context);
  } catch (error) {
    const document = documentOf(error);
    writeLog("ERROR", `Invoke Error \t${textOf(document)}`);
    if (request.headersSent || request.writableEnded) {
      const body = Buffer.from(JSON.stringify(document)).toString("base64");
      request.addTrailers({
        "Lambda-Runtime-Function-Error-Type": document.errorType,
        "Lambda-Runtime-Function-Error-Body": body,
      });
      request.end();
      await taken;
    } else {
      request.destroy();
      await api.error(id, document);
    }
    return;
  }
  if (!request.writableEnded) request.end();
  await taken;
}
