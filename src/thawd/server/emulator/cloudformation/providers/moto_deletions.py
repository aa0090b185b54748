"""Deletes, through the services' APIs, resources whose classes in moto make them and cannot delete them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thawd.server.emulator.cloudformation.providers.aws_clients import Aws
from thawd.server.emulator.cloudformation.stack_records import Resource

Properties = dict[str, Any]

_ID, _IDS = "(id)", "[(id)]"
# The service, its operation, and its parameters: the physical id, a list of it, a property, or a value.
_DELETIONS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "AWS::Batch::ComputeEnvironment": ("batch", "delete_compute_environment", {"computeEnvironment": _ID}),
    "AWS::Batch::JobDefinition": ("batch", "deregister_job_definition", {"jobDefinition": _ID}),
    "AWS::Batch::JobQueue": ("batch", "delete_job_queue", {"jobQueue": _ID}),
    "AWS::EC2::FlowLog": ("ec2", "delete_flow_logs", {"FlowLogIds": _IDS}),
    "AWS::EC2::InternetGateway": ("ec2", "delete_internet_gateway", {"InternetGatewayId": _ID}),
    "AWS::EC2::NatGateway": ("ec2", "delete_nat_gateway", {"NatGatewayId": _ID}),
    "AWS::EC2::Route": (
        "ec2",
        "delete_route",
        {"RouteTableId": "RouteTableId", "DestinationCidrBlock": "DestinationCidrBlock"},
    ),
    "AWS::EC2::RouteTable": ("ec2", "delete_route_table", {"RouteTableId": _ID}),
    "AWS::EC2::SecurityGroupIngress": (
        "ec2",
        "revoke_security_group_ingress",
        {name: name for name in ("GroupId", "IpProtocol", "FromPort", "ToPort", "CidrIp")},
    ),
    "AWS::EC2::SpotFleet": (
        "ec2",
        "cancel_spot_fleet_requests",
        {"SpotFleetRequestIds": _IDS, "TerminateInstances": True},
    ),
    "AWS::EC2::SubnetRouteTableAssociation": ("ec2", "disassociate_route_table", {"AssociationId": _ID}),
    "AWS::EC2::TransitGateway": ("ec2", "delete_transit_gateway", {"TransitGatewayId": _ID}),
    "AWS::EC2::VPCEndpoint": ("ec2", "delete_vpc_endpoints", {"VpcEndpointIds": _IDS}),
    "AWS::EC2::VPCPeeringConnection": (
        "ec2",
        "delete_vpc_peering_connection",
        {"VpcPeeringConnectionId": _ID},
    ),
    "AWS::EC2::VPNGateway": ("ec2", "delete_vpn_gateway", {"VpnGatewayId": _ID}),
    "AWS::EC2::Volume": ("ec2", "delete_volume", {"VolumeId": _ID}),
    "AWS::EC2::VolumeAttachment": ("ec2", "detach_volume", {"VolumeId": "VolumeId"}),
    "AWS::ECS::Cluster": ("ecs", "delete_cluster", {"cluster": _ID}),
    "AWS::ECS::Service": ("ecs", "delete_service", {"cluster": "Cluster", "service": _ID, "force": True}),
    "AWS::ECS::TaskDefinition": ("ecs", "deregister_task_definition", {"taskDefinition": _ID}),
    "AWS::ElasticLoadBalancingV2::Listener": ("elbv2", "delete_listener", {"ListenerArn": _ID}),
    "AWS::ElasticLoadBalancingV2::ListenerRule": ("elbv2", "delete_rule", {"RuleArn": _ID}),
    "AWS::ElasticLoadBalancingV2::TargetGroup": ("elbv2", "delete_target_group", {"TargetGroupArn": _ID}),
    "AWS::Redshift::Cluster": (
        "redshift",
        "delete_cluster",
        {"ClusterIdentifier": _ID, "SkipFinalClusterSnapshot": True},
    ),
    "AWS::Redshift::ClusterParameterGroup": ("redshift", "delete_cluster_parameter_group", {"ParameterGroupName": _ID}),
    "AWS::Redshift::ClusterSubnetGroup": ("redshift", "delete_cluster_subnet_group", {"ClusterSubnetGroupName": _ID}),
    "AWS::Route53::HealthCheck": ("route53", "delete_health_check", {"HealthCheckId": _ID}),
    "AWS::Route53::HostedZone": ("route53", "delete_hosted_zone", {"Id": _ID}),
}


def delete(aws: Aws, resource: Resource, found: Any) -> bool:
    """Delete a resource through its service's API; returns False if this module does not know its type.

    Args:
        aws: the services.
        resource: the resource.
        found: moto's object for it.
    """
    kind, properties = resource.kind, resource.properties
    if kind == "AWS::EC2::EIP":
        address = {"AllocationId": found.allocation_id} if found.allocation_id else {"PublicIp": found.public_ip}
        aws.remove("ec2", "release_address", address)
    elif kind == "AWS::EC2::VPCGatewayAttachment":
        gateway = "internet" if properties.get("InternetGatewayId") else "vpn"
        given = {name: properties.get(name) for name in ("VpcId", "InternetGatewayId", "VpnGatewayId")}
        aws.remove("ec2", f"detach_{gateway}_gateway", given)
    elif kind in _DELETIONS:
        service, method, parameters = _DELETIONS[kind]
        values = {_ID: resource.physical_id, _IDS: [resource.physical_id]}
        given = {
            name: values.get(source, properties.get(source)) if isinstance(source, str) else source
            for name, source in parameters.items()
        }
        aws.remove(service, method, given)
    else:
        return False
    return True
