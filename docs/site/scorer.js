// Ranks what the search finds: of pages that have the words alike, those for newcomers come first. Sphinx reads this.
var Scorer = {
  score: ([page, title, anchor, description, score]) => score + (PAGE_WEIGHTS[page] || 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
