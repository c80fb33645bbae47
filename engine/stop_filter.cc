#include "engine/stop_filter.h"

#include <algorithm>
#include <utility>

namespace weft {

StopFilter::StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

std::string StopFilter::push(std::string_view piece) {
  if (stopped_) {
    return {};
  }
  held_ += piece;
  size_t cut = std::string::npos;
  for (const std::string& stop : stops_) {
    cut = std::min(cut, held_.find(stop));
  }
  if (cut != std::string::npos) {
    stopped_ = true;
    std::string shown = held_.substr(0, cut);
    held_.clear();
    return shown;
  }
  // Keep the longest end of the text that begins some stop string.
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > keep; --length) {
      if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, length))) {
        keep = length;
      }
    }
  }
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return shown;
}

std::string StopFilter::flush() { return std::exchange(held_, {}); }

}  // namespace weft
