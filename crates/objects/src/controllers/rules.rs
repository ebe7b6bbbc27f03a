//! What the shape of StatefulSets and Jobs can't say.

use super::{JobSpec, StatefulSetSpec};
use crate::decode::{Context, Problem};
use crate::workload::RestartPolicy;

type Check = Result<(), Problem>;

pub(crate) fn stateful_set_spec(spec: &StatefulSetSpec, _: &mut Context) -> Check {
    if spec.selector.match_labels.is_empty() && spec.selector.match_expressions.is_empty() {
        return Err(Problem::at(".selector", "must not be empty: it says which pods belong to the StatefulSet"));
    }
    if !spec.selector.matches(&spec.template.metadata.labels) {
        return Err(Problem::at(".selector", "does not match spec.template.metadata.labels"));
    }
    for (index, claim) in spec.volume_claim_templates.iter().enumerate() {
        if claim.metadata.name.is_empty() {
            return Err(Problem::at(format!(".volumeClaimTemplates[{index}].metadata.name"), "is required"));
        }
    }
    Ok(())
}

pub(crate) fn job_spec(spec: &JobSpec, _: &mut Context) -> Check {
    if spec.template.spec.restart_policy == RestartPolicy::Always {
        return Err(Problem::at(
            ".template.spec.restartPolicy",
            "has to be OnFailure or Never in a Job, whose pods are to end; Always is what it is where it is not written",
        ));
    }
    Ok(())
}
