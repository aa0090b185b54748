// Lambda's error documents from what JavaScript throws: errorType, errorMessage, trace.

/** An error with one of Lambda's error types for its name. */
export function fault(errorType, message) {
  const error = new Error(message);
  error.name = errorType;
  error.stack = `${errorType}: ${message}`;
  return error;
}

/** The document for anything that can be thrown. */
export function documentOf(error, errorType) {
  if (isError(error)) {
    const message = String(error.message);
    const name = String(errorType ?? error.name);
    return { errorType: name, errorMessage: message, trace: String(error.stack ?? `${name}: ${message}`).split("\n") };
  }
  return { errorType: errorType ?? typeof error, errorMessage: String(error), trace: [] };
}

/** The same for the log, on one line. */
export function textOf(document) {
  return JSON.stringify({ errorType: document.errorType, errorMessage: document.errorMessage, stack: document.trace });
}

// An error of another realm, such as a vm context, is no instance of this one's Error.
function isError(value) {
  return value instanceof Error || (value !== null && typeof value === "object" && "message" in value && "stack" in value);
}
