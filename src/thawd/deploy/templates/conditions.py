"""Evaluates the sections ``Conditions`` and ``Rules`` of a template.

Source: CloudFormation template reference, "Condition functions" and "Rule-specific intrinsic functions".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from thawd.deploy.templates import context_free_functions
from thawd.deploy.templates.intrinsic_functions import Scope, evaluate
from thawd.deploy.templates.refusals import TemplateError

_SEVERAL = "object requires a list of at least 2 and at most 10 boolean parameters."


class Conditions:
    """The conditions of a template. Each is evaluated when it is first needed.

    Args:
        declared: the section ``Conditions``.
        scope: parameters and mappings; its `is_true` is replaced by this object's.
    """

    def __init__(self, declared: Mapping[str, Any], scope: Scope) -> None:
        self._declared = declared
        self._scope = replace(scope, is_true=self.is_true, resources=(), made={}, is_plan=False)
        self._values: dict[str, bool] = {}
        self._open: list[str] = []

    def is_true(self, name: str) -> bool:
        """Return whether a condition holds.

        Raises:
            TemplateError: there is no such condition, or it is malformed or depends on itself.
        """
        if name in self._values:
            return self._values[name]
        if name not in self._declared:
            raise TemplateError(f"Template format error: Unresolved condition dependency {name} in the template")
        if name in self._open:
            names = ", ".join(self._open[self._open.index(name) :])
            raise TemplateError(f"Template error: Found circular condition dependency between {names}")
        self._open.append(name)
        try:
            self._values[name] = self.holds(self._declared[name])
        finally:
            self._open.pop()
        return self._values[name]

    def all(self) -> dict[str, bool]:
        """Return the values of all conditions. Raises: TemplateError."""
        return {name: self.is_true(name) for name in self._declared}

    def holds(self, value: Any) -> bool:
        """Evaluate one condition's definition. Raises: TemplateError."""
        if not isinstance(value, dict) or len(value) != 1:
            raise TemplateError("Template format error: Every Conditions member must be a condition function.")
        [(function, argument)] = value.items()
        match function:
            case "Condition":
                if not isinstance(argument, str):
                    raise TemplateError("Template format error: Condition needs the name of a condition")
                return self.is_true(argument)
            case "Fn::Equals":
                return context_free_functions.equals([self._evaluated(each) for each in _list(argument)])
            case "Fn::Not":
                if len(_list(argument)) != 1:
                    raise TemplateError("Template error: every Fn::Not object requires one boolean parameter.")
                return not self.holds(argument[0])
            case "Fn::And" | "Fn::Or":
                if not 2 <= len(_list(argument)) <= 10:
                    raise TemplateError(f"Template error: every {function} {_SEVERAL}")
                values = [self.holds(each) for each in argument]
                return all(values) if function == "Fn::And" else any(values)
            case "Fn::Contains" | "Fn::EachMemberIn" | "Fn::EachMemberEquals":
                return self._compares(function, argument)
        raise TemplateError(f"Template format error: {function} is no condition function.")

    def _compares(self, function: str, argument: Any) -> bool:
        """Return the functions of rules that compare a list with a value, or with another list."""
        if len(_list(argument)) != 2:
            raise TemplateError(f"Template error: every {function} object requires two parameters.")
        values, other = (self._evaluated(each) for each in argument)
        if not isinstance(values, list):
            raise TemplateError(f"Template error: the first parameter of {function} must be a list.")
        if function == "Fn::Contains":
            return any(context_free_functions.equals([each, other]) for each in values)
        if function == "Fn::EachMemberEquals":
            return all(context_free_functions.equals([each, other]) for each in values)
        return all(any(context_free_functions.equals([each, one]) for one in _list(other)) for each in values)

    def _evaluated(self, value: Any) -> Any:
        if isinstance(value, dict) and len(value) == 1:
            function = next(iter(value))
            if function in ("Fn::RefAll", "Fn::ValueOf", "Fn::ValueOfAll"):
                raise TemplateError(f"Template error: {function} reads resources of an AWS account, which is not there")
            if function in ("Fn::Equals", "Fn::Not", "Fn::And", "Fn::Or"):
                return self.holds(value)
        return evaluate(value, self._scope)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def check_rules(rules: Mapping[str, Any], conditions: Conditions) -> None:
    """Check the section ``Rules``.

    Raises:
        TemplateError: an assertion of a rule that applies does not hold, or a rule is malformed.
    """
    for name, rule in rules.items():
        if not isinstance(rule, dict) or not isinstance(rule.get("Assertions"), list):
            raise TemplateError(f"Template format error: Rule {name} must contain Assertions.")
        if "RuleCondition" in rule and not conditions.holds(rule["RuleCondition"]):
            continue
        for assertion in rule["Assertions"]:
            if not isinstance(assertion, dict) or "Assert" not in assertion:
                raise TemplateError(
                    f"Template format error: Every assertion of rule {name} must contain an Assert member."
                )
            if not conditions.holds(assertion["Assert"]):
                described = assertion.get("AssertDescription", "its assertion does not hold")
                raise TemplateError(f"Rule {name} failed: {described}")
