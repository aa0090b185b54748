// The function of tests/integration/test_runtime_kinds.py, for Node.

let counter = 0;

class ValueError extends Error {
  name = "ValueError";
}

if (process.env.FAIL === "init") throw new ValueError("no luck");
if (process.env.FAIL === "exit") process.exit(7);
console.log("initialised");

export async function handler(event, context) {
  counter += 1;
  switch (event?.do) {
    case "error":
      throw new ValueError("boom");
    case "sleep":
      await new Promise((resolve) => setTimeout(resolve, 60_000));
      break;
    case "exit":
      process.exit(7);
      break;
    case "large":
      return "x".repeat(event.bytes);
    case "print":
      console.log("a line from the handler");
      break;
    case "context":
      return {
        id: context.awsRequestId,
        arn: context.invokedFunctionArn,
        left_ms: context.getRemainingTimeInMillis(),
        client: context.clientContext ?? null,
        trace: process.env._X_AMZN_TRACE_ID ?? null,
      };
    case "environ":
      return { cwd: process.cwd(), variables: Object.entries(process.env).map(([name, value]) => `${name}=${value}`) };
  }
  return { event, counter };
}
