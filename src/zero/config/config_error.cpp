#include "zero/config/config_error.hpp"

#include <algorithm>

namespace penstock::zero::config {

Error to_error(const char* operation, const std::string& name, std::vector<Problem> problems,
               const std::string& what) {
  // Problems without a line come last.
  std::stable_sort(problems.begin(), problems.end(),
                   [](const Problem& a, const Problem& b) { return a.line - 1 < b.line - 1; });
  Error error = Error::invalid_config(operation).object(name).reason(
      what + " cannot be used: " + std::to_string(problems.size()) +
      (problems.size() == 1 ? " error" : " errors"));
  for (const Problem& problem : problems) {
    std::string place = problem.path;
    if (problem.line > 0) {
      place += (place.empty() ? "line " : ", line ") + std::to_string(problem.line);
    }
    error = std::move(error).note(place.empty() ? problem.text : place + ": " + problem.text);
  }
  return error;
}

}  // namespace penstock::zero::config
