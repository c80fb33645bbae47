# Run at every build (cmake -DSOURCE=... -DVERSION=... -DCOMMIT=... -DOUT=... -P): writes the file that says which version and
# commit the command is of (cli/origin.h), and leaves it alone where that has not changed. An empty COMMIT: git is asked.
set(commit "unknown")
find_program(GIT git)
if(COMMIT)
  set(commit ${COMMIT})
elseif(GIT)
  execute_process(
    COMMAND ${GIT} -C ${SOURCE} describe --always --abbrev=10 --exclude=* --dirty=+changes
    OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(commit ${described})
  endif()
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT [[
#include "cli/origin.h"

const char* const weft::cli::kVersion = "@VERSION@";
const char* const weft::cli::kCommit = "@commit@";
]] @ONLY)
