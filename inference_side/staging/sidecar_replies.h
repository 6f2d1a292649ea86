// Contents of the messages from a sidecar to its coordinator: its Hello and its refusals.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "inference_side/staging/decision_record.h"
#include "inference_side/staging/sidecar_events.h"
#include "inference_side/staging/sidecar_record.h"

namespace wsync::staging {

// Whether a message is a Heartbeat or an ErrorReply. A coordinator also sends these to sidecars
// that do not follow it. They must not be answered.
[[nodiscard]] bool is_notice(const control::Message& message);

// The answer to a message under a lower fence or from another fleet; std::nullopt if it gets no
// answer. `own`: the fence that the sidecar `name` follows.
[[nodiscard]] std::optional<control::ErrorReply> fence_refusal(const std::string& name,
                                                               const control::Fence& own,
                                                               const CoordinatorMessage& message,
                                                               FenceCheck check);
// The answer to a message whose record could not be written.
[[nodiscard]] control::Message write_refusal(const std::string& name,
                                             const CoordinatorMessage& cause,
                                             const std::string& failure);
// Why an offered layout is refused; std::nullopt if it is accepted.
[[nodiscard]] std::optional<std::string> layout_refusal(const LayoutChecked& checked);

// The identity and the decision of this sidecar. The caller adds the copies, the replicas and the
// layout.
[[nodiscard]] control::Hello hello_of(const SidecarOptions& options, const SidecarRecord& record);

}  // namespace wsync::staging
