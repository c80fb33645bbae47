#include "engine/stop_filter.h"

#include <algorithm>
#include <utility>

namespace weft {

StopFilter::StopFilter(std::vector<std::string> stops, bool shows_stop)
    : stops_(std::move(stops)), shows_stop_(shows_stop) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

std::string StopFilter::push(std::string_view piece) {
  if (stopped_) {
    return {};
  }
  held_ += piece;
  size_t cut = std::string::npos;
  size_t shown_of_stop = 0;
  for (const std::string& stop : stops_) {
    if (const size_t at = held_.find(stop); at < cut) {
      cut = at;
      shown_of_stop = shows_stop_ ? stop.size() : 0;
    }
  }
  if (cut != std::string::npos) {
    stopped_ = true;
    std::string shown = held_.substr(0, cut + shown_of_stop);
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
