// Keys for the tests of ports.
#pragma once

#include <gtest/gtest.h>
#include <string>
#include <utility>

#include "shared/control/zmq/key_pair.h"
#include "shared/control/zmq/ports.h"

namespace wsync::control {

// A coordinator's key pair, and key files of peers that it lists.
class TestKeys {
 public:
  TestKeys() : server_(make_key_pair().value()) {}

  // A key that is not listed.
  [[nodiscard]] KeyFile unlisted(KeyRole role, const std::string& name) const {
    return {.owner = {.role = role, .name = name},
            .pair = make_key_pair().value(),
            .server_key = server_.public_key};
  }
  // A key that is listed from now on.
  KeyFile list(KeyRole role, const std::string& name) {
    KeyFile key = unlisted(role, name);
    EXPECT_TRUE(listed_.add(key.owner, key.pair.public_key).has_value());
    return key;
  }
  [[nodiscard]] const AuthorizedKeys& listed() const { return listed_; }
  // The keys that are listed, but for one.
  [[nodiscard]] AuthorizedKeys without(const KeyFile& key) const {
    AuthorizedKeys rest;
    for (const auto& [half, owner] : listed_.owners())
      if (half != key.pair.public_key) {
        EXPECT_TRUE(rest.add(owner, half).has_value());
      }
    return rest;
  }
  [[nodiscard]] RouterKeys of_router() const {
    return {.secret_key = server_.secret_key, .admitted = listed_};
  }

 private:
  KeyPair server_;
  AuthorizedKeys listed_;
};

}  // namespace wsync::control
