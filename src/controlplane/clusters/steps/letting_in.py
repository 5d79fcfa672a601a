"""
Asking a provider for a tenant's way into a cluster. It goes to whoever asked and stays nowhere else.
"""

from controlplane.clusters.errors import NoKubeconfig
from controlplane.clusters.states import KubeconfigAsk
from controlplane.kit.errors import Conflict, FieldError, Invalid, Unavailable
from controlplane.providers.credentials import Kubeconfig
from controlplane.providers.errors import NotFound, Permanent, ProviderError, Transient, Unsupported
from controlplane.providers.toolbox import Toolbox

TOO_LONG = "kubeconfig_too_long"


def issue(ask: KubeconfigAsk, tools: Toolbox) -> Kubeconfig:
    """
    A new kubeconfig. Raises Invalid for a lifetime above the provider's ceiling, NoKubeconfig where it makes none, Conflict where the
    cluster is not there any more, Unavailable when it gave no answer that could be used; no error says what the provider said.
    """
    try:
        return tools.kubeconfigs(ask.provider).issue_kubeconfig(ask.cluster_id, ask.tenant_id, lifetime_s=ask.lifetime_s)
    except Unsupported:
        raise NoKubeconfig("The provider of this cluster hands out no kubeconfigs.") from None
    except NotFound:
        raise Conflict("The provider does not show the cluster now; look at its state.", retry_after_s=5.0) from None
    except Permanent as error:
        if error.code == TOO_LONG:
            words = "The operator of this cluster allows shorter ones only."
            raise Invalid(words, errors=[FieldError("body.lifetime_s", TOO_LONG, words)]) from None
        raise Conflict("The provider turned this down; its operator can see why.", code="provider_refused") from None
    except Transient as error:
        raise Unavailable("The provider gives no answer; try again.", retry_after_s=error.retry_in_s) from None
    except ProviderError:
        raise Unavailable("The provider gives no answer; try again.") from None
