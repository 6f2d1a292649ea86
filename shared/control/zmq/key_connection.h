// KeyConnection: by which key and over which connection a message has come to a router with keys.
//
// libzmq has no call that ends one connection of a router. shutdown() of its descriptor does: the
// library then ends it as if the peer had. A descriptor number may belong to another file by the
// time it is used, so the socket behind it is compared before.
//
// Thread: the loop's.
#pragma once

#include <string>
#include <sys/types.h>

#include "shared/control/keys/authorized_keys.h"
#include "shared/control/zmq/socket.h"

namespace wsync::control {

class KeyConnection {
 public:
  KeyConnection() = default;
  // Of a message that was received, whose key may be listed in `keys` or not any more.
  [[nodiscard]] static KeyConnection of(const Part& message, const AuthorizedKeys& keys);

  [[nodiscard]] bool is_listed() const noexcept { return is_listed_; }
  // Whether the key has the same owner in other keys.
  [[nodiscard]] bool is_still_listed(const AuthorizedKeys& keys) const;
  [[nodiscard]] bool is_same_key(const KeyConnection& other) const { return key_ == other.key_; }
  // The holder of the key. Only if it is listed.
  [[nodiscard]] const KeyOwner& owner() const noexcept { return owner_; }
  // The holder, or the public half of a key that is not listed. For people.
  [[nodiscard]] std::string who() const;
  // Ends the connection. Does nothing if it has ended.
  void end() const;

 private:
  std::string key_;  // public half, Z85
  KeyOwner owner_;
  bool is_listed_ = false;
  int fd_ = -1;
  dev_t device_ = 0;  // with `socket_`: of the socket behind fd_
  ino_t socket_ = 0;
};

}  // namespace wsync::control
