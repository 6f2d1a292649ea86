// The contents of what a sidecar sends to its coordinator: its Hello, and its refusals in words.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "inference_side/staging/decision_record.h"
#include "inference_side/staging/sidecar_events.h"
#include "inference_side/staging/sidecar_record.h"

namespace wsync::staging {

// Whether a message is a Heartbeat or an ErrorReply. A coordinator sends these also to sidecars
// that are not its own, and nobody answers them.
[[nodiscard]] bool is_notice(const control::Message& message);

// The answer to a message under a lower fence, or of another fleet; none when it gets no answer.
// `own`: the fence that the sidecar `name` follows.
[[nodiscard]] std::optional<control::ErrorReply> fence_refusal(const std::string& name,
                                                               const control::Fence& own,
                                                               const CoordinatorMessage& message,
                                                               FenceCheck check);
// The answer to the message whose record could not be written.
[[nodiscard]] control::Message write_refusal(const std::string& name,
                                             const CoordinatorMessage& cause,
                                             const std::string& failure);
// Why an offered layout is refused; none when it is accepted.
[[nodiscard]] std::optional<std::string> layout_refusal(const LayoutChecked& checked);

// What this sidecar is and has decided. The caller adds the copies, the replicas and the layout.
[[nodiscard]] control::Hello hello_of(const SidecarOptions& options, const SidecarRecord& record);

}  // namespace wsync::staging
