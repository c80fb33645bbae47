// Cuts a stream of text at the first of a set of stop strings, never letting out part of one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft {

class StopFilter {
 public:
  /// Empty stop strings are ignored. `shows_stop`: the stop string that is found comes out, too.
  explicit StopFilter(std::vector<std::string> stops, bool shows_stop = false);

  /// Takes the next piece and gives what can be shown: text that can no longer be the beginning of
  /// a stop string. Nothing comes after a stop string was seen.
  std::string push(std::string_view piece);
  /// What was held back, at the end of the stream.
  std::string flush();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool shows_stop_;
  bool stopped_ = false;
};

}  // namespace weft
