#include "shared/control/messages.h"

namespace wsync::control {

Message::Message() noexcept = default;
Message::Message(const Message& other) = default;
Message::Message(Message&& other) noexcept = default;
Message& Message::operator=(const Message& other) = default;
Message& Message::operator=(Message&& other) noexcept = default;
Message::~Message() = default;

}  // namespace wsync::control
