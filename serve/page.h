// The page at /: a chat with the model, one file that asks nobody else for anything (serve/page/).
#pragma once

#include <string_view>

namespace weft::serve {

extern const std::string_view kPage;  ///< HTML

}  // namespace weft::serve
