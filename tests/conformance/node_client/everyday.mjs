// What people do with functions every day, by AWS's SDK for JavaScript v3. Prints one JSON document of what it has seen.
// Arguments: the server's URL, a zip file with app.py, a runtime.
import {
  AddPermissionCommand, CreateAliasCommand, CreateFunctionCommand, CreateFunctionUrlConfigCommand, DeleteFunctionCommand,
  GetAccountSettingsCommand, GetAliasCommand, GetFunctionCommand, GetPolicyCommand, InvokeCommand,
  InvokeWithResponseStreamCommand, LambdaClient, ListTagsCommand, PublishVersionCommand, PutFunctionConcurrencyCommand,
  PutFunctionEventInvokeConfigCommand, ResourceConflictException, ResourceNotFoundException, TagResourceCommand,
  UpdateAliasCommand, UpdateFunctionCodeCommand, UpdateFunctionConfigurationCommand, paginateListVersionsByFunction,
  waitUntilFunctionActiveV2, waitUntilFunctionUpdatedV2, waitUntilPublishedVersionActive,
} from "@aws-sdk/client-lambda";
import { readFileSync } from "node:fs";

const [, , endpoint, archive, runtime] = process.argv;
const client = new LambdaClient({
  endpoint, region: "us-east-1", credentials: { accessKeyId: "test", secretAccessKey: "test" }, maxAttempts: 1,
});
const FunctionName = "from-node";
const waiter = { client, maxWaitTime: 60, minDelay: 1, maxDelay: 1 };
const text = (bytes) => new TextDecoder().decode(bytes);
const seen = {};

const created = await client.send(new CreateFunctionCommand({
  FunctionName, Runtime: runtime, Role: "arn:aws:iam::000000000000:role/any", Handler: "app.handler",
  Code: { ZipFile: readFileSync(archive) }, Tags: { made: "by node" },
}));
seen.created = [created.State, created.Version, created.$metadata.httpStatusCode, Boolean(created.$metadata.requestId)];
await waitUntilFunctionActiveV2(waiter, { FunctionName });
const invoked = await client.send(new InvokeCommand({
  FunctionName, Payload: JSON.stringify({ a: 1 }), LogType: "Tail",
}));
seen.invoked = [invoked.StatusCode, invoked.ExecutedVersion, JSON.parse(text(invoked.Payload)).event];
seen.log = Buffer.from(invoked.LogResult, "base64").toString().includes("START RequestId");
const failed = await client.send(new InvokeCommand({ FunctionName, Payload: JSON.stringify({ fail: true }) }));
seen.failed = [failed.FunctionError, JSON.parse(text(failed.Payload)).errorType];
seen.event = (await client.send(new InvokeCommand({ FunctionName, InvocationType: "Event" }))).StatusCode;
const stream = await client.send(new InvokeWithResponseStreamCommand({ FunctionName, Payload: "{}" }));
seen.stream = "";
for await (const event of stream.EventStream) {
  if (event.PayloadChunk) seen.stream += text(event.PayloadChunk.Payload);
  if (event.InvokeComplete) seen.complete = event.InvokeComplete.ErrorCode ?? null;
}
seen.stream = JSON.parse(seen.stream).version;
await client.send(new UpdateFunctionConfigurationCommand({
  FunctionName, Environment: { Variables: { COLOUR: "blue" } },
}));
await waitUntilFunctionUpdatedV2(waiter, { FunctionName });
const version = (await client.send(new PublishVersionCommand({ FunctionName }))).Version;
await waitUntilPublishedVersionActive(waiter, { FunctionName, Qualifier: version });
await client.send(new CreateAliasCommand({ FunctionName, Name: "live", FunctionVersion: version }));
await client.send(new UpdateFunctionCodeCommand({ FunctionName, ZipFile: readFileSync(archive), Publish: true }));
await waitUntilFunctionUpdatedV2(waiter, { FunctionName });
await client.send(new UpdateAliasCommand({
  FunctionName, Name: "live", RoutingConfig: { AdditionalVersionWeights: { 2: 0.5 } },
}));
seen.alias = (await client.send(new GetAliasCommand({ FunctionName, Name: "live" }))).RoutingConfig;
const aliased = await client.send(new InvokeCommand({ FunctionName, Qualifier: "1", Payload: "{}" }));
seen.variable = JSON.parse(text(aliased.Payload)).variable;
await client.send(new PutFunctionConcurrencyCommand({ FunctionName, ReservedConcurrentExecutions: 2 }));
seen.reserved = (await client.send(new GetFunctionCommand({ FunctionName }))).Concurrency.ReservedConcurrentExecutions;
const events = await client.send(new PutFunctionEventInvokeConfigCommand({ FunctionName, MaximumRetryAttempts: 0 }));
seen.events = [events.MaximumRetryAttempts, events.LastModified instanceof Date];
await client.send(new AddPermissionCommand({
  FunctionName, StatementId: "s", Action: "lambda:InvokeFunction", Principal: "s3.amazonaws.com",
}));
seen.policy = JSON.parse((await client.send(new GetPolicyCommand({ FunctionName }))).Policy).Statement.length;
const url = await client.send(new CreateFunctionUrlConfigCommand({ FunctionName, AuthType: "NONE" }));
seen.url = (await fetch(url.FunctionUrl, { method: "POST", body: "{}" })).status;
await client.send(new TagResourceCommand({ Resource: created.FunctionArn, Tags: { more: "yes" } }));
seen.tags = (await client.send(new ListTagsCommand({ Resource: created.FunctionArn }))).Tags;
seen.versions = [];
for await (const page of paginateListVersionsByFunction({ client, pageSize: 1 }, { FunctionName })) {
  seen.versions.push(...page.Versions.map((one) => one.Version));
}
seen.limit = (await client.send(new GetAccountSettingsCommand({}))).AccountLimit.CodeSizeZipped;
const refused = async (command) => client.send(command).then(() => null, (error) => error);
const conflict = await refused(new CreateAliasCommand({ FunctionName, Name: "live", FunctionVersion: "1" }));
seen.conflict = [conflict instanceof ResourceConflictException, conflict.$metadata.httpStatusCode, conflict.message];
await client.send(new DeleteFunctionCommand({ FunctionName }));
const missing = await refused(new GetFunctionCommand({ FunctionName }));
seen.missing = [missing instanceof ResourceNotFoundException, missing.$metadata.httpStatusCode, missing.message];
console.log(JSON.stringify(seen));
