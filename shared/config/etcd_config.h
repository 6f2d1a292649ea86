// The etcd cluster that keeps the decisions of a fleet: the keys decision_store and etcd.*.
#pragma once

#include <string>
#include <vector>

namespace wsync::config {

struct EtcdConfig {
  std::vector<std::string> members;  // URLs of its members; empty: decisions are kept in a file
  // Files in PEM, for members at https://. Empty: the authorities of the system; no certificate.
  std::string authorities;
  std::string certificate;
  std::string key;
  friend bool operator==(const EtcdConfig&, const EtcdConfig&) = default;
};

}  // namespace wsync::config
