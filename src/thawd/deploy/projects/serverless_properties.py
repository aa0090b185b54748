"""The properties of serverless.yml that thawd knows. All others are reported, so that none is ignored silently.

Source: Serverless Framework documentation, "Serverless.yml Reference", version 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Section:
    """A section of serverless.yml.

    Attributes:
        served: properties that thawd reads.
        without_effect: properties that concern only how Serverless itself works or deploys.
        missing: other properties of Serverless, with what their absence means here.
    """

    served: frozenset[str]
    without_effect: frozenset[str] = frozenset()
    missing: Mapping[str, str] = field(default_factory=dict)


def unread(section: Section, where: str, given: Any) -> Iterator[str]:
    """Yield a line for each property of a section that thawd leaves out.

    Args:
        section: the known properties of the section.
        where: the section's place, for example ``functions.read.``.
        given: the section. If it is no map, nothing in it is left out.
    """
    for name in given if isinstance(given, dict) else ():
        if name not in section.served and name not in section.without_effect:
            yield f"{where}{name} is left out: {section.missing.get(name, 'thawd does not know this property')}"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NOT_LOGGED = "API Gateway writes no access logs here"
_LOGS_KEPT = "thawd keeps logs as its own configuration says"
_EXISTING_API = "thawd makes an API of the service's own"

SERVICE = Section(
    served=_words("service provider functions layers resources package plugins custom params stages useDotenv"),
    without_effect=_words(
        "frameworkVersion configValidationMode deprecationNotificationMode disabledDeprecations "
        "variablesResolutionMode "
        "unresolvedVariablesNotificationMode enableLocalInstallationFallback projectDir org app tenant console "
        "licenseKey"
    ),
    missing={
        "build": "run the bundler yourself, and name its folder or zip file in package.artifact",
        "stepFunctions": "declare AWS::StepFunctions::StateMachine in resources",
        "constructs": "thawd does not run serverless-lift; declare the resources themselves",
        "appSync": "thawd has no AppSync",
    },
)

PROVIDER = Section(
    served=_words(
        "name runtime stage region stackName stackTags stackParameters tags environment memorySize timeout "
        "architecture kmsKeyArn "
        "awsKmsKeyArn layers iam role iamRoleStatements iamManagedPolicies rolePermissionsBoundary ecr httpApi "
        "apiGateway "
        "apiName apiKeys usagePlan endpointType resourcePolicy tracing vpc runtimeManagement s3"
    ),
    without_effect=_words(
        "profile deploymentBucket deploymentPrefix deploymentMethod lambdaHashingVersion stackPolicy notificationArns "
        "rollbackConfiguration disableRollback cfnRole disableDefaultOutputExportNames versionFunctions eventBridge"
    ),
    missing={
        "logs": _NOT_LOGGED,
        "logRetentionInDays": _LOGS_KEPT,
        "logDataProtectionPolicy": _LOGS_KEPT,
        "alb": "thawd has no load balancers",
        "cloudFront": "thawd has no CloudFront",
        "websocketsApiName": "thawd has no WebSocket APIs",
        "websocketsApiRouteSelectionExpression": "thawd has no WebSocket APIs",
        "websocketsDescription": "thawd has no WebSocket APIs",
    },
)

FUNCTION = Section(
    served=_words(
        "handler image name description memorySize timeout runtime role environment tags layers events package url "
        "reservedConcurrency provisionedConcurrency snapStart architecture ephemeralStorageSize kmsKeyArn awsKmsKeyArn "
        "destinations maximumEventAge maximumRetryAttempts onError tracing vpc fileSystemConfig runtimeManagement "
        "condition "
        "dependsOn module"
    ),
    without_effect=_words("versionFunction"),
    missing={
        "disableLogs": "the function's log is kept",
        "logRetentionInDays": _LOGS_KEPT,
        "logDataProtectionPolicy": _LOGS_KEPT,
        "iamRoleStatements": "roles are recorded and not enforced",
        "iamRoleStatementsInherit": "roles are recorded and not enforced",
        "iamRoleStatementsName": "roles are recorded and not enforced",
        "warmup": "thawd does not run serverless-plugin-warmup; use provisionedConcurrency",
    },
)

PACKAGE = Section(
    served=_words("patterns include exclude artifact individually"),
    without_effect=_words("excludeDevDependencies"),  # thawd leaves them in: a package is larger, and works
    missing={"path": "thawd takes packages that are made already from `artifact`"},
)

LAYER = Section(
    served=_words("path name description compatibleRuntimes compatibleArchitectures licenseInfo retain package"),
    missing={"allowedAccounts": "there are no other accounts"},
)

IMAGE = Section(served=_words("uri name command entryPoint workingDirectory"))
BUILT_IMAGE = Section(
    served=_words("uri path file buildArgs"),
    without_effect=_words("cacheFrom provenance"),
    missing={
        "platform": "images are built for this machine",
        "buildOptions": "thawd builds images without Docker",
    },
)
ROLE = Section(served=_words("name path statements managedPolicies permissionsBoundary permissionBoundary tags"))
IAM = Section(served=_words("role"), without_effect=_words("deploymentRole"))

URL = Section(served=_words("authorizer cors invokeMode"))
HTTP_API = Section(
    served=_words("name payload cors authorizers disableDefaultEndpoint"),
    without_effect=_words("useProviderTags shouldStartNameWithService"),
    missing={"id": _EXISTING_API, "metrics": "thawd's metrics are at /_thawd/metrics", "timeout": "see the functions"},
)
REST_API = Section(
    served=_words(
        "apiKeys usagePlan minimumCompressionSize description binaryMediaTypes resourcePolicy disableDefaultEndpoint "
        "shouldStartNameWithService"
    ),
    missing={
        "restApiId": _EXISTING_API,
        "restApiRootResourceId": _EXISTING_API,
        "restApiResources": _EXISTING_API,
        "websocketApiId": "thawd has no WebSocket APIs",
        "apiKeySourceType": "API keys are read from the header x-api-key",
        "request": "requests are not validated by schemas",
        "metrics": "thawd's metrics are at /_thawd/metrics",
        "stage": "the stage of the API is that of the service",
        "timeoutInMillis": "the functions' own time limits hold",
    },
)

EVENTS: Mapping[str, Section] = {
    "http": Section(
        _words("method path cors private authorizer integration"),
        _words("operationId connectionType connectionId"),
        {
            "request": "requests are neither validated nor mapped",
            "response": "responses are not mapped",
            "async": "the function is invoked synchronously",
            "timeoutInMillis": "the function's own time limit holds",
        },
    ),
    "http, lambda": Section(
        _words("method path cors private authorizer integration request response async"),
        _words("operationId connectionType connectionId"),
        {"timeoutInMillis": "the function's own time limit holds"},
    ),
    "httpApi": Section(_words("method path authorizer timeout"), _words("operationId")),
    "s3": Section(_words("bucket event rules existing"), _words("forceDeploy")),
    "sqs": Section(
        _words(
            "arn batchSize enabled functionResponseType maximumBatchingWindow batchWindow filterPatterns "
            "maximumConcurrency"
        )
    ),
    "sns": Section(
        _words("arn topicName displayName filterPolicy filterPolicyScope"),
        missing={"redrivePolicy": "messages that cannot be delivered are not kept"},
    ),
    "schedule": Section(
        _words("rate enabled name description input method timezone"),
        _words("roleArn groupName"),
        {
            "inputPath": "the function gets the event as it is",
            "inputTransformer": "the function gets the event as it is",
        },
    ),
    "stream": Section(
        _words(
            "arn type batchSize batchWindow maximumBatchingWindow enabled startingPosition startingPositionTimestamp "
            "maximumRetryAttempts maximumRecordAgeInSeconds bisectBatchOnFunctionError parallelizationFactor "
            "tumblingWindowInSeconds functionResponseType filterPatterns destinations"
        ),
        missing={
            "consumer": "the stream is read without a consumer of its own",
            "consumerName": "the stream is read without a consumer of its own",
        },
    ),
    "eventBridge": Section(
        _words(
            "eventBus schedule pattern event input inputPath inputTransformer enabled name description retryPolicy "
            "deadLetterQueueArn"
        )
    ),
    "cloudwatchLog": Section(_words("logGroup filter")),
}
"""Events that thawd reads, with their options."""
EVENTS_MISSING: Mapping[str, str] = {
    "websocket": "thawd has no WebSocket APIs",
    "msk": "thawd reads no Kafka",
    "kafka": "thawd reads no Kafka",
    "activemq": "thawd has no Amazon MQ",
    "rabbitmq": "thawd has no Amazon MQ",
    "alexaSkill": "Alexa cannot reach this machine",
    "alexaSmartHome": "Alexa cannot reach this machine",
    "iot": "thawd has no AWS IoT",
    "cognitoUserPool": "the emulated user pools call no functions",
    "alb": "thawd has no load balancers",
    "cloudFront": "thawd has no CloudFront",
}
"""Other events of Serverless, with the reason."""
