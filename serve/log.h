// One line for each request, and the few that the server says of itself, written by a thread of its
// own: who logs never waits for a disk.
#pragma once

#include <memory>
#include <string>

namespace weft::serve {

class RequestLog {
 public:
  RequestLog();
  ~RequestLog();  ///< after what was logged is written
  /// Logs a line to standard error. When many wait for a slow disk the oldest is dropped; one that
  /// cannot be written is lost, and nothing else.
  void write(const std::string& line);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::serve
