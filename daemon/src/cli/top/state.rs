//! What is looked at, and what a key changes in that.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// What the screen shows below its head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum View {
    /// The tasks in their order, with what is between them.
    #[default]
    Graph,
    /// Each instance of each task.
    Tasks,
    /// Each end of each channel on the node that is asked.
    Channels,
    /// The data links of that node.
    Links,
    /// Who waited for how long, by cause.
    Stalls,
}

impl View {
    /// All of them, in the order of their keys.
    pub(super) const ALL: [Self; 5] = [Self::Graph, Self::Tasks, Self::Channels, Self::Links, Self::Stalls];

    /// As the head shows it.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Graph => "graph",
            Self::Tasks => "tasks",
            Self::Channels => "channels",
            Self::Links => "links",
            Self::Stalls => "stalls",
        }
    }

    fn step(self, by: usize) -> Self {
        let at = Self::ALL.iter().position(|view| *view == self).unwrap_or(0);
        Self::ALL.get((at + by) % Self::ALL.len()).copied().unwrap_or(self)
    }
}

/// What a key asks for beyond another look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Nothing.
    Stay,
    /// The end.
    Quit,
}

/// What is looked at.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) view: View,
    /// Lines of the view that are above the screen.
    pub(super) scrolled: usize,
    /// Lines of the view that fit on the screen, and that there are. Written by who draws.
    pub(super) page: usize,
    pub(super) lines: usize,
    /// Whether newer reports are left unread.
    pub(super) is_paused: bool,
    /// Whether the keys are explained.
    pub(super) shows_help: bool,
}

impl State {
    /// Most lines that may be above the screen.
    fn scrolled_max(&self) -> usize {
        self.lines.saturating_sub(self.page)
    }

    /// What was drawn: `lines` of which `page` fit. What is scrolled beyond them comes back.
    pub(super) fn set_lines(&mut self, lines: usize, page: usize) {
        (self.lines, self.page) = (lines, page);
        self.scrolled = self.scrolled.min(self.scrolled_max());
    }

    fn show(&mut self, view: View) {
        if self.view != view {
            (self.view, self.scrolled) = (view, 0);
        }
    }

    /// Takes a key.
    pub(super) fn handle_key(&mut self, key: KeyEvent) -> Action {
        if self.shows_help && key.code != KeyCode::Char('q') {
            self.shows_help = false;
            return Action::Stay;
        }
        let page = self.page.max(1);
        match key.code {
            KeyCode::Char('c' | 'd') if key.modifiers.contains(KeyModifiers::CONTROL) => return Action::Quit,
            KeyCode::Char('q') | KeyCode::Esc => return Action::Quit,
            KeyCode::Char(digit @ '1'..='5') => {
                let at = digit as usize - '1' as usize;
                self.show(View::ALL.get(at).copied().unwrap_or_default());
            }
            KeyCode::Tab | KeyCode::Right => self.show(self.view.step(1)),
            KeyCode::BackTab | KeyCode::Left => self.show(self.view.step(View::ALL.len() - 1)),
            KeyCode::Up | KeyCode::Char('k') => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.scrolled += 1,
            KeyCode::PageUp => self.scrolled = self.scrolled.saturating_sub(page),
            KeyCode::PageDown | KeyCode::Char(' ') => self.scrolled += page,
            KeyCode::Home => self.scrolled = 0,
            KeyCode::End => self.scrolled = self.scrolled_max(),
            KeyCode::Char('p') => self.is_paused = !self.is_paused,
            KeyCode::Char('?' | 'h') => self.shows_help = true,
            _ => {}
        }
        self.scrolled = self.scrolled.min(self.scrolled_max());
        Action::Stay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(state: &mut State, code: KeyCode) -> Action {
        state.handle_key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn views_are_chosen_by_number_and_in_a_circle() {
        let mut state = State::default();
        press(&mut state, KeyCode::Char('4'));
        assert_eq!(state.view, View::Links);
        press(&mut state, KeyCode::Tab);
        press(&mut state, KeyCode::Tab);
        assert_eq!(state.view, View::Graph);
        press(&mut state, KeyCode::BackTab);
        assert_eq!(state.view, View::Stalls);
        assert_eq!(press(&mut state, KeyCode::Char('9')), Action::Stay);
        assert_eq!(state.view, View::Stalls);
    }

    #[test]
    fn nothing_scrolls_beyond_its_ends_and_another_view_begins_at_its_top() {
        let mut state = State::default();
        state.set_lines(25, 10);
        for (code, scrolled) in [
            (KeyCode::Up, 0),
            (KeyCode::PageDown, 10),
            (KeyCode::PageDown, 15),
            (KeyCode::Down, 15),
            (KeyCode::Up, 14),
            (KeyCode::Home, 0),
            (KeyCode::End, 15),
        ] {
            press(&mut state, code);
            assert_eq!(state.scrolled, scrolled, "{code:?}");
        }
        state.set_lines(12, 10);
        assert_eq!(state.scrolled, 2, "what there was has become less");
        press(&mut state, KeyCode::Char('2'));
        assert_eq!(state.scrolled, 0);
    }

    #[test]
    fn only_keys_that_say_so_end_it() {
        let mut state = State::default();
        for code in [KeyCode::Char('x'), KeyCode::Enter, KeyCode::Char('c'), KeyCode::F(10), KeyCode::Delete]
        {
            assert_eq!(press(&mut state, code), Action::Stay, "{code:?}");
        }
        press(&mut state, KeyCode::Char('?'));
        assert!(state.shows_help);
        assert_eq!(press(&mut state, KeyCode::Esc), Action::Stay, "it ends the help first");
        assert!(!state.shows_help);
        for key in [
            KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE),
            KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE),
            KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL),
        ] {
            assert_eq!(state.handle_key(key), Action::Quit, "{key:?}");
        }
    }
}
