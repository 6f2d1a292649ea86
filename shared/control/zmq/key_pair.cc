#include "shared/control/zmq/key_pair.h"

#include <array>
#include <zmq.h>

#include "shared/base/format.h"

namespace wsync::control {

Result<KeyPair> make_key_pair() {
  std::array<char, kKeyCharacters + 1> public_key{};
  std::array<char, kKeyCharacters + 1> secret_key{};
  if (zmq_has("curve") != 1 || zmq_curve_keypair(public_key.data(), secret_key.data()) != 0)
    return fail(ErrorCode::kInternal,
                "the ZeroMQ library of this host was built without CURVE, so it has no keys: "
                "install one with libsodium, as Debian's libzmq5 is");
  return KeyPair{.public_key = public_key.data(), .secret_key = secret_key.data()};
}

}  // namespace wsync::control
