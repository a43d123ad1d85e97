// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/config.hpp>
#include <dynbatch/sim/cost_model.hpp>
#include <dynbatch/sim/cost_sets.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace dynbatch::inline DYNBATCH_ABI {
namespace {

using Json = nlohmann::json;

CostResult fail(std::string error) {
  CostResult result;
  result.error = std::move(error);
  return result;
}

constexpr double kLargestMs = 3.6e6;

// Reads a coefficient of at most an hour as a whole number of 1 / `per_ms` milliseconds.
bool read_number(const Json& set, const char* key, bool required, double per_ms,
                 std::int64_t& value, std::string& problem) {
  const auto found = set.find(key);
  if (found == set.end() && !required) {
    return true;
  }
  const double ms = found != set.end() && found->is_number() ? found->get<double>() : std::nan("");
  if (!(ms >= 0.0 && ms <= kLargestMs)) {
    problem =
        fmt::format("'{}' must be a number of milliseconds from 0 to {:.0f}", key, kLargestMs);
    return false;
  }
  value = std::llround(ms * per_ms);
  return true;
}

// A sum "-22+0.2868*T+1.75e-6*sumL2" of the formulas, in ms, from the front of a text.
class Terms {
 public:
  explicit Terms(std::string_view text) : text_(text) {}

  bool skip(std::string_view word) {
    const bool found = text_.substr(0, word.size()) == word;
    text_.remove_prefix(found ? word.size() : 0);
    return found;
  }
  [[nodiscard]] bool is_at_end() const { return text_.empty(); }
  [[nodiscard]] std::string_view rest() const { return text_; }

  bool number(double& value) {
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
    return error == std::errc{} && value >= 0.0 && value <= kLargestMs;
  }

  // Each variable's factor is added to its target, as a whole number of 1 / per_ms.
  struct Target {
    std::string_view variable;
    double per_ms;
    std::int64_t* value;
  };
  bool sum(std::int64_t& constant_ns, std::initializer_list<Target> targets) {
    bool is_minus = skip("-");
    do {
      double factor = 0.0;
      if (!number(factor)) {
        return false;
      }
      if (!skip("*")) {
        constant_ns += std::llround((is_minus ? -factor : factor) * 1e6);
      } else {
        const auto* const found = std::find_if(targets.begin(), targets.end(),
                                               [&](const Target& t) { return skip(t.variable); });
        if (found == targets.end() || is_minus) {
          return false;
        }
        *found->value += std::llround(factor * found->per_ms);
      }
      is_minus = text_.substr(0, 1) == "-";
    } while (skip("+") || skip("-"));
    return true;
  }

 private:
  std::string_view text_;
};

// prefill_ms=max(66.0, -0.6+0.1763*T); decode_ms=43.7+0.159*B+4.05e-4*KV (B<95) else 7.17+...
bool read_form(std::string_view form, FormulaCost& model, std::string& problem) {
  std::string compact;
  std::copy_if(form.begin(), form.end(), std::back_inserter(compact),
               [](char c) { return c != ' '; });
  Terms terms(compact);
  PhaseCost& phases = model.phases;
  const auto prompts = [&] {  // a pair is half a squared length
    return terms.sum(phases.offset_ns,
                     {{"T", 1e9, &phases.token_ps}, {"sumL2", 2e12, &phases.pair_fs}});
  };
  const auto decodes = [&](PhaseCost::Decode& d) {
    return terms.sum(d.fixed_ns, {{"B", 1e9, &d.row_ps}, {"KV", 1e9, &d.kv_token_ps}}) &&
           d.fixed_ns >= 0;
  };
  double floor_ms = 0.0;
  double rows = 0.0;
  bool is_good = terms.skip("prefill_ms=");
  if (is_good && terms.skip("max(")) {
    is_good = terms.number(floor_ms) && terms.skip(",") && prompts() && terms.skip(")");
    phases.floor_ns = std::llround(floor_ms * 1e6);
  } else {
    is_good = is_good && prompts();
  }
  is_good = is_good && terms.skip(";decode_ms=") && decodes(phases.decode);
  if (is_good && terms.skip("(B<")) {
    is_good = terms.number(rows) && terms.skip(")");
    if (is_good && terms.skip("else")) {
      phases.many_rows = std::llround(rows);
      is_good = decodes(phases.decode_many);
    }
  }
  if (!is_good || !terms.is_at_end()) {
    problem = fmt::format(
        "'form' is not understood from '{}' on; it must read \"prefill_ms=max(F, A+D*T+E*sumL2); "
        "decode_ms=A+B*B+C*KV (B<N) else ...\"",
        terms.rest());
    return false;
  }
  model.has_phases = true;
  return true;
}

bool read_linear(const Json& set, FormulaCost& model, std::string& problem) {
  StepCost& cost = model.cost;
  return read_number(set, "a_ms", true, 1e6, cost.fixed_ns, problem) &&
         read_number(set, "b_ms_per_req", true, 1e9, cost.decode_row_ps, problem) &&
         read_number(set, "c_ms_per_kv_token", true, 1e9, cost.kv_token_ps, problem) &&
         read_number(set, "d_ms_per_prefill_token", true, 1e9, cost.prefill_token_ps, problem);
}

CostResult read_set(const Json& set, std::string_view file) {
  CostResult result;
  FormulaCost& model = result.cost.model;
  std::string problem;
  model.cost.version = 1;
  if (!set.is_object()) {
    return fail(fmt::format("{}: a cost set must be a JSON object", file));
  }
  const auto form = set.find("form");
  const bool is_form = form != set.end() && form->is_string() && !set.contains("a_ms");
  if (!(is_form ? read_form(form->get<std::string>(), model, problem)
                : read_linear(set, model, problem)) ||
      !read_number(set, "host_overhead_ms", false, 1e6, model.host_overhead.ns, problem)) {
    const auto name = set.find("name");
    const bool is_built_in =
        name != set.end() && std::any_of(kCostSets.begin(), kCostSets.end(),
                                         [&](const CostSet& s) { return *name == s.name; });
    return fail(fmt::format("{}: {}{}", file, problem,
                            is_built_in ? "; the set of this name is built in" : ""));
  }
  const auto text_of = [&](const char* key, std::string_view otherwise) {
    const auto found = set.find(key);
    return found != set.end() && found->is_string() ? found->get<std::string>()
                                                    : std::string(otherwise);
  };
  result.cost.name = text_of("name", file);
  result.cost.source = text_of("source", file);
  const auto mape = set.find("mape");
  if (mape != set.end() && mape->is_number()) {
    result.cost.mape_percent = mape->get<double>();
  } else if (mape != set.end() && mape->is_array() && mape->size() == 2 && (*mape)[0].is_number() &&
             (*mape)[1].is_number()) {
    result.cost.mape_percent = (*mape)[0].get<double>();
    result.cost.decode_mape_percent = (*mape)[1].get<double>();
  }
  return result;
}

std::string known_names() {
  std::string names;
  for (const CostSet& set : kCostSets) {
    names += fmt::format("\n  {}", set.name);
  }
  return names;
}

}  // namespace

CostResult parse_cost(std::string_view text, std::string_view set_name, std::string_view file) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) {
    return fail(fmt::format("{}: not JSON", file));
  }
  if (!json.is_object() || !json.contains("sets")) {
    return read_set(json, file);
  }
  const Json& sets = json["sets"];
  if (!sets.is_array()) {
    return fail(fmt::format("{}: 'sets' must be an array", file));
  }
  if (set_name.empty() && sets.size() == 1) {
    return read_set(sets[0], file);
  }
  for (const Json& set : sets) {
    if (set.is_object() && set.contains("name") && set["name"] == set_name) {
      return read_set(set, file);
    }
  }
  return fail(set_name.empty()
                  ? fmt::format("{}: holds {} sets, name one as {}#NAME", file, sets.size(), file)
                  : fmt::format("{}: holds no set '{}'", file, set_name));
}

CostResult find_cost(const std::string& name_or_file) {
  for (const CostSet& set : kCostSets) {
    if (name_or_file == set.name) {
      CostResult result;
      result.cost = {set.name, set.source, set.model, set.mape_percent, set.decode_mape_percent};
      return result;
    }
  }
  const std::size_t hash = name_or_file.rfind('#');
  const std::string path = name_or_file.substr(0, hash);
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file || text.empty()) {
    return fail(fmt::format("'{}' is neither a readable file nor a built-in cost set; these are{}",
                            path, known_names()));
  }
  return parse_cost(text, hash == std::string::npos ? "" : name_or_file.substr(hash + 1), path);
}

std::string to_text(const FormulaCost& model) {
  const auto ms = [](std::int64_t value, double per_ms) {
    return static_cast<double>(value) / per_ms;
  };
  const StepCost& c = model.cost;
  std::string text = fmt::format("{:g}", ms(c.fixed_ns + model.host_overhead.ns, 1e6));
  const auto add = [&](std::int64_t value, double per_ms, const char* variable) {
    if (value != 0) {
      text += fmt::format(" + {:g} {}", ms(value, per_ms), variable);
    }
  };
  add(c.decode_row_ps, 1e9, "B");
  add(c.kv_token_ps, 1e9, "KV");
  add(c.prefill_token_ps, 1e9, "T");
  add(c.attention_pair_fs, 1e12, "pairs");
  if (!model.has_phases) {
    return text;
  }
  const PhaseCost& p = model.phases;
  const char* const tokens = p.counts_rows ? "(T + B)" : "T";
  text += fmt::format(" + max({:g}, {:g}", ms(p.floor_ns, 1e6), ms(p.offset_ns, 1e6));
  add(p.token_ps, 1e9, tokens);
  add(p.pair_fs, 1e12, "pairs");
  text += fmt::format(") if {}", tokens);
  add(p.chunk_ns, 1e6, "chunks");
  const auto decode = [&](const PhaseCost::Decode& d) {
    text += fmt::format("{:g}", ms(d.fixed_ns, 1e6));
    add(d.row_ps, 1e9, "B");
    add(d.kv_token_ps, 1e9, "KV");
  };
  text += " + (";
  decode(p.decode);
  text += ") if B";
  if (p.many_rows != INT64_MAX) {
    text += fmt::format(" < {}, else (", p.many_rows);
    decode(p.decode_many);
    text += ")";
  }
  return text;
}

}  // namespace dynbatch::inline DYNBATCH_ABI
