// What the holder of a key may ask of a coordinator with keys: a table of roles and messages.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "shared/control/keys/key_owner.h"
#include "shared/control/messages.h"

namespace wsync::coordinator {

// The roles whose keys a message needs, in the order of KeyRole. Every role may send a heartbeat;
// nobody may send a message that only a coordinator, an engine or a rank of a trainer sends. Pure.
[[nodiscard]] std::vector<control::KeyRole> roles_that_send(control::MessageType type);

// Why the holder of this key may not send the message, as one sentence that says whose key it
// needs, or nothing if it may. A sidecar joins under the name of its key alone. Pure.
[[nodiscard]] std::optional<std::string> why_not_permitted(const control::KeyOwner& sender,
                                                           const control::Message& message);

}  // namespace wsync::coordinator
