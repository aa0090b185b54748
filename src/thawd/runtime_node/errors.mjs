// Makes Lambda's error documents (errorType, errorMessage, trace) from values that JavaScript code throws.

/** An error whose name is one of Lambda's error types. */
export function fault(errorType, message) {
  const error = new Error(message);
  error.name = errorType;
  error.stack = `${errorType}: ${message}`;
  return error;
}

/** The error document for any thrown value. */
export function documentOf(error, errorType) {
  if (isError(error)) {
    const message = String(error.message);
    const name = String(errorType ?? error.name);
    return { errorType: name, errorMessage: message, trace: String(error.stack ?? `${name}: ${message}`).split("\n") };
  }
  return { errorType: errorType ?? typeof error, errorMessage: String(error), trace: [] };
}

/** An error document as one line for the log. */
export function textOf(document) {
  return JSON.stringify({ errorType: document.errorType, errorMessage: document.errorMessage, stack: document.trace });
}

// An error of another realm, such as a vm context, is not an instance of this realm's Error.
function isError(value) {
  return value instanceof Error || (value !== null && typeof value === "object" && "message" in value && "stack" in value);
}
