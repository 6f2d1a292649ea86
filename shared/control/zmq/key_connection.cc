#include "shared/control/zmq/key_connection.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "shared/base/format.h"
#include "shared/base/unique_fd.h"

namespace wsync::control {

KeyConnection KeyConnection::of(const Part& message, const AuthorizedKeys& keys) {
  KeyConnection made;
  made.key_ = message.user();
  if (const KeyOwner* owner = keys.find(made.key_)) {
    made.owner_ = *owner;
    made.is_listed_ = true;
  }
  made.fd_ = message.connection_fd();
  struct stat status{};
  if (made.fd_ >= 0 && ::fstat(made.fd_, &status) == 0) {
    made.device_ = status.st_dev;
    made.socket_ = status.st_ino;
  }
  return made;
}

bool KeyConnection::is_still_listed(const AuthorizedKeys& keys) const {
  const KeyOwner* owner = keys.find(key_);
  return owner != nullptr && *owner == owner_;
}

std::string KeyConnection::who() const {
  return is_listed_ ? owner_.text() : fmt::format("the holder of key {}", key_);
}

void KeyConnection::end() const {
  if (fd_ < 0) return;
  // The duplicate belongs to this function, so nobody can replace what is behind it.
  const UniqueFd same(::fcntl(fd_, F_DUPFD_CLOEXEC, 0));
  struct stat status{};
  if (!same.valid() || ::fstat(same.get(), &status) != 0 || !S_ISSOCK(status.st_mode) ||
      status.st_dev != device_ || status.st_ino != socket_)
    return;
  ::shutdown(same.get(), SHUT_RDWR);
}

}  // namespace wsync::control
